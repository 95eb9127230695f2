//! `sluice pkcs11`.

use super::{Context, Exit, Failure, render::pkcs11 as render};
use crate::probe::pkcs11::{
    self, Program,
    doctor::{self, Look, Seen},
};
use std::{collections::BTreeMap, path::PathBuf};

/// HSMs: look at a module, let a PIN be tried again.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Pkcs11 {
    /// See [`Doctor`].
    #[command(about = "Load a module as the daemon would, and show its slots and tokens")]
    Doctor(Doctor),
    /// See [`Unlock`].
    #[command(about = "Let the daemon try a token's PIN again")]
    Unlock(Unlock),
    /// What the daemon starts for each HSM; of no use by hand.
    #[command(hide = true)]
    Worker {
        /// Service and origin, for the list of processes.
        slot: String,
    },
}

/// Load a module as the daemon would, and show its slots and tokens, raw flags and versions, and the time of each call.
///
/// It runs in a process of its own without rights, opens no session and never logs in. Exit codes: 0 seen whole, 1 not.
#[derive(Clone, Debug, clap::Args)]
pub struct Doctor {
    /// The vendor's library.
    module: PathBuf,
    /// A variable of the module's environment, which is empty otherwise; may be given several times.
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable)]
    env: Vec<(String, String)>,
    /// Whom it runs as, if this command is root: as `user` of the origin.
    #[arg(long, default_value = "nobody")]
    user: String,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

/// Let the daemon try a token's PIN again, after it was refused or a login had no answer.
///
/// Look first whether the PIN file is right: tokens lock after a few wrong ones.
#[derive(Clone, Debug, clap::Args)]
pub struct Unlock {
    /// The token's serial, as `sluice pkcs11 doctor` shows it; its label, if it has no serial.
    serial: String,
}

fn variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("write NAME=VALUE".to_owned()),
    }
}

impl Pkcs11 {
    /// Runs it.
    ///
    /// # Errors
    ///
    /// It failed.
    pub fn run(self, context: &mut Context<'_>) -> Result<Exit, Failure> {
        match self {
            Self::Doctor(doctor) => doctor.run(context),
            Self::Unlock(unlock) => unlock.run(context),
            Self::Worker { .. } => Err(Failure::new(Exit::Usage, "this command is for the daemon")),
        }
    }
}

impl Doctor {
    fn run(self, context: &mut Context<'_>) -> Result<Exit, Failure> {
        let Self { module, env, user, json } = self;
        let user = pkcs11::user(&user).map_err(Failure::of)?;
        let env: BTreeMap<_, _> = env.into_iter().collect();
        let look = Look { program: Program::default(), module, env, user };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let seen: Seen = runtime.block_on(doctor::look(look));
        if json {
            context.json(&render::report(&seen))?;
        } else {
            let text = render::text(&seen);
            context.out.write_all(text.as_bytes())?;
        }
        Ok(if seen.trouble.is_none() { Exit::Done } else { Exit::Failed })
    }
}

impl Unlock {
    fn run(self, context: &mut Context<'_>) -> Result<Exit, Failure> {
        let Self { serial } = self;
        let state_dir = context.settings.state_dir.clone();
        doctor::unlock(&state_dir, &serial)?;
        writeln!(context.out, "the PIN of token {serial} may be tried once more")?;
        Ok(Exit::Done)
    }
}
