//! `grpc`: whose health is asked for.

use super::{
    Out, Section,
    tls::{self, TlsConfig},
};
use crate::config::resolved::text;

/// A gRPC health check (`grpc.health.v1`), checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrpcCheck {
    /// Full name of the service; "" asks for the server as a whole. Default "".
    pub service: String,
    /// Spoken over TLS if the check has a `tls` table, else in clear text with prior knowledge.
    pub tls: Option<TlsConfig>,
}

pub(super) fn read(section: &Section<'_>) -> GrpcCheck {
    let service = section.text("service", "shop.v1.Cart").map_or(String::new(), |service| service.value.to_owned());
    GrpcCheck { service, tls: section.get("tls").map(|_| tls::table(section)) }
}

impl GrpcCheck {
    pub(super) fn write(&self, out: &mut Out) {
        out.key("service", text(&self.service));
        if let Some(tls) = &self.tls {
            tls.write(out);
        }
    }
}
