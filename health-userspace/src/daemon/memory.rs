//! What the judgement knows that evidence of the present can't tell, in a file that outlives the daemon.
//!
//! `state_dir/judgement.json`, version 1. It is written whole beside itself, flushed and renamed, so that a crash leaves the
//! old one or the new one. Times are those of the wall clock; ends of steps count from `saved_at`, for a step does not
//! go on while nobody watches. A file that can't be read is set aside as `judgement.json.bad`, and said.

mod file;

use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
};

use file::{Clock, File, Names, Saved, VERSION, render, save};
use health_core::{Span, Timestamp, engine::Memory};
use tokio::task::JoinHandle;
use tracing::{error, info, warn};

use super::Daemon;
use crate::config::{Ids, ServiceConfig};

/// Time between two writes while there is something to remember, so that a step loses no more than this.
const REFRESH: Span = Span::from_secs(10);

/// The same while all that is to be remembered is what is usual.
const REFRESH_USUAL: Span = Span::from_secs(300);

/// Time between two writes in any case.
const PAUSE: Span = Span::from_secs(1);

/// Time between lines about a memory that can't be written.
const SAY_AGAIN: Span = Span::from_secs(60);

/// Where the file is, and what it holds.
#[derive(Debug)]
pub(super) struct Keeper {
    path: PathBuf,
    last: Option<Vec<Saved>>,
    /// When it was last written.
    at: Timestamp,
    /// When it was last looked whether it should be.
    looked: Timestamp,
    writing: Option<JoinHandle<io::Result<()>>>,
    /// When it was last said that it can't be written.
    said: Timestamp,
}

/// What an earlier daemon left.
#[derive(Debug, Default)]
pub(super) struct Left {
    pub(super) memories: Vec<Memory>,
    /// What the operator should know about the file.
    pub(super) note: Option<String>,
}

impl Keeper {
    /// Of the file in this directory.
    pub(super) fn new(state_dir: &Path) -> Self {
        Self {
            path: state_dir.join("judgement.json"),
            last: None,
            at: Timestamp::NEVER,
            looked: Timestamp::NEVER,
            writing: None,
            said: Timestamp::NEVER,
        }
    }

    /// What an earlier daemon left. A file that can't be read is set aside, and nothing is remembered.
    fn read(&self, names: &Names, clock: Clock) -> Left {
        let text = match fs::read(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Left::default(),
            Err(error) => return self.lost(&error.to_string()),
        };
        match serde_json::from_slice::<File>(&text) {
            Ok(file) if file.version == VERSION => file.recall(names, clock),
            Ok(file) => self.lost(&format!("it is of version {}, and this daemon reads {VERSION}", file.version)),
            Err(error) => self.lost(&error.to_string()),
        }
    }

    fn lost(&self, why: &str) -> Left {
        let aside = self.path.with_extension("json.bad");
        let kept = match fs::rename(&self.path, &aside) {
            Ok(()) => format!("kept as {}", aside.display()),
            Err(error) => format!("and can't be set aside: {error}"),
        };
        let note = format!("{} can't be read ({why}), {kept}: origins are judged anew", self.path.display());
        Left { memories: Vec::new(), note: Some(note) }
    }

    /// Whether [`keep`](Self::keep) would do anything.
    fn is_due(&self, now: Timestamp) -> bool {
        self.looked == Timestamp::NEVER || now.since(self.looked) >= PAUSE
    }

    /// Writes what is to be remembered, if it changed or the file is old. Never waits; what came of an earlier write is said
    /// by the next call.
    ///
    /// # Errors
    ///
    /// An earlier write failed. It is tried again.
    fn keep(&mut self, memories: &[Memory], names: &Names, clock: Clock) -> io::Result<()> {
        let mut before = Ok(());
        if let Some(writing) = self.writing.take_if(|writing| writing.is_finished()) {
            before = futures_util::FutureExt::now_or_never(writing)
                .unwrap_or(Ok(Ok(())))
                .map_err(io::Error::other)
                .flatten();
            if before.is_err() {
                self.last = None;
            }
        }
        if self.writing.is_some() || !self.is_due(clock.mono) {
            return before;
        }
        self.looked = clock.mono;
        let saved = save(memories, names, clock);
        let since = clock.mono.since(self.at);
        let old = since >= REFRESH && saved.iter().any(Saved::is_urgent) || since >= REFRESH_USUAL && !saved.is_empty();
        // What is usual changes by the minute, of ten thousand origins too: it waits for an occasion.
        let judged: Vec<Saved> = saved.iter().filter(|saved| saved.is_urgent()).map(Saved::without_usual).collect();
        if self.last.as_ref() != Some(&judged) || old {
            let (path, text) = (self.path.clone(), render(&saved, clock));
            self.writing = Some(tokio::task::spawn_blocking(move || write(&path, &text)));
            (self.last, self.at) = (Some(judged), clock.mono);
        }
        before
    }

    /// Writes it now: the daemon ends.
    ///
    /// # Errors
    ///
    /// The file can't be written.
    async fn finish(&mut self, memories: &[Memory], names: &Names, clock: Clock) -> io::Result<()> {
        if let Some(writing) = self.writing.take() {
            // Two writers would share the file beside it.
            drop(writing.await);
        }
        write(&self.path, &render(&save(memories, names, clock), clock))
    }
}

fn write(path: &Path, text: &[u8]) -> io::Result<()> {
    let beside = path.with_extension("json.new");
    let mut file = fs::File::create(&beside)?;
    file.write_all(text)?;
    file.sync_all()?;
    fs::rename(&beside, path)?;
    // The name must last as well as what it names.
    path.parent().map_or(Ok(()), |dir| fs::File::open(dir)?.sync_all())
}

impl Daemon {
    /// Goes on where an earlier daemon was.
    pub(super) fn recall(&mut self) {
        let clock = Clock::now();
        let Left { memories, note } = self.keeper.read(&self.names(), clock);
        if let Some(note) = note {
            warn!("{note}");
            self.push("memory_lost", "node".to_owned(), note, "daemon", clock.mono.0);
        }
        if !memories.is_empty() {
            info!(origins = memories.len(), "goes on where the former daemon was");
        }
        self.engine.recall(memories, clock.mono);
    }

    /// Has the memory written, if there is an occasion.
    pub(super) fn keep(&mut self, now: Timestamp) {
        if !self.keeper.is_due(now) {
            return;
        }
        let (memories, clock) = (self.engine.remember(), Clock::now());
        // Ten thousand names are not looked up for nothing.
        let names = if memories.is_empty() { Names::new() } else { self.names() };
        if let Err(error) = self.keeper.keep(&memories, &names, clock)
            && (self.keeper.said == Timestamp::NEVER || now.since(self.keeper.said) >= SAY_AGAIN)
        {
            self.keeper.said = now;
            let detail = format!("cannot write the memory of the judgement, a restart would forget: {error}");
            error!("{detail}");
            self.push("memory_unwritten", "node".to_owned(), detail, "daemon", now.0);
        }
    }

    /// The last word of this daemon.
    pub(super) async fn keep_last(&mut self) {
        let (memories, names) = (self.engine.remember(), self.names());
        if let Err(error) = self.keeper.finish(&memories, &names, Clock::now()).await {
            error!(%error, "cannot write the memory of the judgement, the next daemon will know less");
        }
    }

    fn names(&self) -> Names {
        let ids = self.datapath.registry();
        let of = |service: &ServiceConfig| {
            let name = service.name.clone();
            let origins =
                service.origins.iter().map(move |origin| (ids.origin(origin.address), name.clone(), origin.address));
            origins.collect::<Vec<_>>()
        };
        self.config.services.iter().flat_map(of).collect()
    }
}

#[cfg(test)]
#[path = "memory/tests.rs"]
mod tests;
