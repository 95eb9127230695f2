//! `sluice events`.

use super::{
    Context, Exit, Failure,
    render::events::{Columns, fold},
};
use crate::{control::Answer, report::EventLine};
use std::time::Duration;

/// Show transitions, trips, rescues, moves and overrides, and who did it.
///
/// Exit codes: 0 shown, 4 no daemon answers; events are in its memory, so there is nothing to show then.
#[derive(Clone, Debug, clap::Args)]
pub struct Events {
    /// Only those of this long ago until now, such as 10m. Default: all that the daemon keeps.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    since: Option<Duration>,
    /// Go on with new ones, until Ctrl-C.
    #[arg(long)]
    follow: bool,
    /// Print one JSON object a line, none folded.
    #[arg(long)]
    json: bool,
}

/// What one answer means for the output.
enum Turn {
    Event(EventLine),
    /// All that is kept has come: lost, forgotten.
    Kept(u64, u64),
    Missed(u64),
}

impl Events {
    /// Asks the daemon, and prints while it answers.
    ///
    /// # Errors
    ///
    /// No daemon answers.
    pub fn run(self, context: &mut Context<'_>) -> Result<Exit, Failure> {
        let now = context.outside.now();
        let now_ns = u64::try_from(now.as_nanosecond()).unwrap_or(0);
        let ago = self.since.map(|since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX));
        let since_ns = ago.map_or(0, |ago| now_ns.saturating_sub(ago));
        let mut daemon = context.daemon().map_err(|error| {
            let mut failure = Failure::from(error);
            failure.message.push_str("; events are kept in its memory, the maps hold none");
            failure
        })?;
        let mut printer = Printer { json: self.json, context, past: Some(Vec::new()), columns: None };
        let mut failed = None;
        daemon.events(since_ns, self.follow, &mut |answer| {
            let turn = match answer {
                Answer::Event { event } => Turn::Event(event),
                Answer::Kept { lost, forgotten } => Turn::Kept(lost, forgotten),
                Answer::Missed { missed } => Turn::Missed(missed),
                _ => return true,
            };
            match printer.turn(turn) {
                Ok(()) => true,
                Err(failure) => {
                    failed = Some(failure);
                    false
                }
            }
        })?;
        failed.map_or(Ok(Exit::Done), Err)
    }
}

struct Printer<'c, 'o> {
    json: bool,
    context: &'c mut Context<'o>,
    /// Events until all that is kept has come: folding and widths need them together.
    past: Option<Vec<EventLine>>,
    columns: Option<Columns>,
}

impl Printer<'_, '_> {
    fn turn(&mut self, turn: Turn) -> Result<(), Failure> {
        match turn {
            Turn::Event(event) if self.json => self.context.json(&event)?,
            Turn::Event(event) => match (&mut self.past, &self.columns) {
                (Some(past), _) => past.push(event),
                (None, Some(columns)) => write!(self.context.out, "{}", columns.one(&event))?,
                (None, None) => {}
            },
            Turn::Kept(lost, forgotten) if self.json => {
                if lost + forgotten > 0 {
                    writeln!(self.context.notes, "{}", missing(lost, forgotten))?;
                }
            }
            Turn::Kept(lost, forgotten) => {
                let past = fold(&self.past.take().unwrap_or_default());
                let now = self.context.outside.now();
                let columns = Columns::new(&past, now, self.context.look.zone.clone());
                let lines: String = past.iter().map(|event| columns.one(event)).collect();
                write!(self.context.out, "{}{lines}", columns.heading(now))?;
                writeln!(self.context.out, "{}", missing(lost, forgotten))?;
                self.columns = Some(columns);
            }
            Turn::Missed(missed) => writeln!(self.context.notes, "-- {missed} events missed: this reader is too slow")?,
        }
        self.context.out.flush()?;
        Ok(())
    }
}

fn missing(lost: u64, forgotten: u64) -> String {
    let older = match forgotten {
        0 => "none older forgotten".to_owned(),
        more => format!("{more} older ones forgotten, the daemon keeps {}", crate::control::events::EVENTS_MAX),
    };
    format!("-- {lost} events lost; {older}")
}
