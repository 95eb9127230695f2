//! A look at a module, by a worker as any other: what hangs is named, what crashes harms nobody.

use super::{
    latch::Latch,
    process::{Answer, Death, Process, QUIT_MAX, Setup},
    protocol::{Reply, Request},
    spawn::Program,
};
use std::{collections::BTreeMap, io, path::PathBuf, time::Duration};

pub use super::protocol::{LibraryInfo, SlotEntry, SlotInfo, TokenInfo};
pub use super::slate::Call;
pub use super::trouble::{KeyKind, Trouble, Wrong};

/// For loading, and for the list.
const STEP_MAX: Duration = Duration::from_secs(30);
const MEMORY_MAX: u64 = 1 << 30;

/// What to look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Look {
    /// Program that has the worker.
    pub program: Program,
    /// The library.
    pub module: PathBuf,
    /// All that its environment holds.
    pub env: BTreeMap<String, String>,
    /// Whom it runs as, if we are root.
    pub user: Option<(u32, u32)>,
}

/// What was seen before it ended.
#[derive(Debug, Default)]
pub struct Seen {
    /// What the library says of itself.
    pub library: Option<LibraryInfo>,
    /// Its slots.
    pub slots: Vec<SlotEntry>,
    /// Each call and its time in ns, in order.
    pub calls: Vec<(Call, u64)>,
    /// What kept it from being seen whole.
    pub trouble: Option<String>,
    /// Whether C_Finalize returned well.
    pub finalized: bool,
}

/// Loads the module, lists its slots and tokens, and ends. No session is opened.
pub async fn look(look: Look) -> Seen {
    let setup = Setup {
        program: look.program,
        slot: "doctor".to_owned(),
        module: look.module,
        env: look.env,
        user: look.user,
        memory_max: MEMORY_MAX,
    };
    let mut seen = Seen::default();
    let mut process = match Process::begin(&setup, 1).await {
        Ok(process) => process,
        Err((death, _)) => {
            seen.trouble = Some(said(&death));
            return seen;
        }
    };
    for request in [Request::Load { module: setup.module.clone() }, Request::Slots] {
        match process.ask(request, STEP_MAX).await {
            Ok(Answer { reply, calls, .. }) => {
                seen.calls.extend(calls);
                match reply {
                    Ok(Reply::Loaded(library)) => seen.library = library,
                    Ok(Reply::Slots(slots)) => seen.slots = slots,
                    Ok(_) => {}
                    Err(trouble) => {
                        seen.trouble = Some(trouble.to_string());
                        break;
                    }
                }
            }
            Err(death) => {
                seen.trouble = Some(said(&death));
                drop(process.kill().await);
                return seen;
            }
        }
    }
    (seen.finalized, _) = process.end(QUIT_MAX).await;
    seen
}

/// Lets the PIN of a token be tried once more, whatever is known of it.
///
/// # Errors
///
/// The state directory can't be written.
pub fn unlock(state_dir: &std::path::Path, serial: &str) -> io::Result<()> {
    Latch::new(state_dir, serial).unlock()
}

fn said(death: &Death) -> String {
    let source = std::error::Error::source(death);
    source.map_or_else(|| death.to_string(), |source| format!("{death}: {source}"))
}
