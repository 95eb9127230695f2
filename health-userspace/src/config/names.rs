//! Origins by name: which addresses their names stand for is no part of the file, and changes while it stays.

use super::model::{Config, HostName, OriginConfig};
use health_core::model::Family;
use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
};

/// What names stand for at the moment, as far as that is known.
pub type Found = BTreeMap<String, Vec<IpAddr>>;

/// An origin that has no address for now, and so is left out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unplaced {
    /// Nobody knows the name, or it has no address of the wanted family.
    #[error("origin `{origin}` is left out: its name `{name}` has no {wanted}address")]
    Unknown {
        /// `SERVICE/ORIGIN`.
        origin: String,
        /// The name.
        name: String,
        /// `IPv4 `, `IPv6 `, or nothing.
        wanted: &'static str,
    },
    /// `node.redirect_allow` forbids it.
    #[error("origin `{origin}` is left out: `{name}` is {address}, outside node.redirect_allow")]
    Forbidden {
        /// `SERVICE/ORIGIN`.
        origin: String,
        /// The name.
        name: String,
        /// What it stands for.
        address: SocketAddr,
    },
    /// An address belongs to one service, once.
    #[error("origin `{origin}` is left out: `{name}` is {address}, which is another origin or a virtual address")]
    Taken {
        /// `SERVICE/ORIGIN`.
        origin: String,
        /// The name.
        name: String,
        /// What it stands for.
        address: SocketAddr,
    },
}

impl Config {
    /// The names of its origins.
    #[must_use]
    pub fn host_names(&self) -> BTreeSet<String> {
        let origins = self.services.iter().flat_map(|service| &service.origins);
        origins.filter_map(|origin| origin.host.as_ref()).map(|host| host.name.clone()).collect()
    }

    /// The same with an address for each origin that has a name. Where a name stands for several, the one of `before` is
    /// kept, for an answer's order changes with each question; else the least is taken, IPv4 first. Origins without one are
    /// left out, and services without origins.
    #[must_use]
    pub fn placed(&self, found: &Found, before: Option<&Self>) -> (Self, Vec<Unplaced>) {
        let mut placed = self.clone();
        let mut unplaced = Vec::new();
        let all = || self.services.iter().flat_map(|service| &service.origins);
        let fixed = all().filter(|origin| origin.host.is_none()).map(|origin| origin.address);
        let vips = self.services.iter().flat_map(|service| service.vips.iter().copied());
        let mut taken: BTreeSet<SocketAddr> = fixed.chain(vips).collect();
        for service in &mut placed.services {
            let name = service.name.clone();
            service.origins.retain_mut(|origin| {
                let Some(host) = origin.host.clone() else { return true };
                let of = format!("{name}/{}", origin.name);
                let former = before.and_then(|before| former(before, &name, &origin.name));
                match self.place(&host, found, former, of) {
                    Ok(address) if !taken.insert(address) => {
                        unplaced.push(Unplaced::Taken {
                            origin: format!("{name}/{}", origin.name),
                            name: host.name,
                            address,
                        });
                        false
                    }
                    Ok(address) => {
                        origin.address = address;
                        true
                    }
                    Err(error) => {
                        unplaced.push(error);
                        false
                    }
                }
            });
        }
        placed.services.retain(|service| !service.origins.is_empty());
        (placed, unplaced)
    }

    fn place(
        &self,
        host: &HostName,
        found: &Found,
        former: Option<IpAddr>,
        origin: String,
    ) -> Result<SocketAddr, Unplaced> {
        let wanted = |ip: &&IpAddr| match host.family {
            None => true,
            Some(Family::V4) => ip.is_ipv4(),
            Some(Family::V6) => ip.is_ipv6(),
        };
        let name = host.name.clone();
        let ips = found.get(&host.name).map_or(&[][..], Vec::as_slice);
        let kept = ips.iter().filter(wanted).find(|ip| Some(**ip) == former);
        let Some(ip) = kept.or_else(|| ips.iter().filter(wanted).min()) else {
            let wanted = match host.family {
                None => "",
                Some(Family::V4) => "IPv4 ",
                Some(Family::V6) => "IPv6 ",
            };
            return Err(Unplaced::Unknown { origin, name, wanted });
        };
        let address = SocketAddr::new(ip.to_canonical(), host.port);
        let allow = &self.node.redirect_allow;
        if !allow.is_empty() && !allow.iter().any(|prefix| prefix.contains(address.ip())) {
            return Err(Unplaced::Forbidden { origin, name, address });
        }
        Ok(address)
    }
}

fn former(before: &Config, service: &str, origin: &str) -> Option<IpAddr> {
    let service = before.services.iter().find(|candidate| candidate.name == service)?;
    let origin: &OriginConfig = service.origins.iter().find(|candidate| candidate.name == origin)?;
    origin.host.is_some().then(|| origin.address.ip())
}

#[cfg(test)]
mod tests {
    use crate::config::{Config, Found, parse};

    fn config(more: &str) -> Config {
        let text = format!(
            "[node]\ninterfaces = [\"eth1\"]\nredirect_allow = [\"10.0.0.0/8\", \"2001:db8::/32\"]\n[[service]]\nname = \
             \"s\"\n[[service.origin]]\nname = \"a\"\naddress = \"10.0.0.1:80\"\n[[service.origin]]\nname = \"dr\"\naddress = \
             \"dr.example:80\"\npriority = 1\n{more}\n"
        );
        parse(&text, "f").expect("valid").config
    }

    fn found(addresses: &[&str]) -> Found {
        let addresses = addresses.iter().map(|address| address.parse().expect("an address")).collect();
        Found::from([("dr.example".to_owned(), addresses)])
    }

    #[test]
    fn a_name_keeps_its_address_as_long_as_it_stands_for_it() {
        let config = config("");
        let address = |found: &Found, before: Option<&Config>| {
            let (placed, unplaced) = config.placed(found, before);
            assert_eq!(unplaced, []);
            (placed.services[0].origins[1].address.to_string(), placed)
        };
        let (first, placed) = address(&found(&["10.0.0.9", "10.0.0.7", "2001:db8::1"]), None);
        assert_eq!(first, "10.0.0.7:80");
        let (kept, _) = address(&found(&["10.0.0.3", "10.0.0.7"]), Some(&placed));
        assert_eq!(kept, "10.0.0.7:80");
        let (other, _) = address(&found(&["10.0.0.3"]), Some(&placed));
        assert_eq!(other, "10.0.0.3:80");
    }

    #[test]
    fn what_has_no_place_is_left_out_and_named() {
        let told = |config: &Config, found: &Found| {
            let (placed, unplaced) = config.placed(found, None);
            assert_eq!(placed.services[0].origins.len(), 1);
            unplaced[0].to_string()
        };
        let plain = config("");
        assert!(told(&plain, &Found::new()).contains("`s/dr` is left out: its name `dr.example` has no address"));
        assert!(told(&plain, &found(&["192.0.2.1"])).contains("outside node.redirect_allow"));
        assert!(told(&plain, &found(&["10.0.0.1"])).contains("is 10.0.0.1:80, which is another origin"));
        let six = config("family = \"ipv6\"");
        assert!(told(&six, &found(&["10.0.0.2"])).contains("has no IPv6 address"));
        assert_eq!(six.placed(&found(&["10.0.0.2", "2001:db8::5"]), None).1, []);
        let written = parse(&six.resolved(), "f").expect("what it wrote").config;
        assert_eq!(written, six);
    }
}
