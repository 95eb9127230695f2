//! Redirections that ended, or that nothing has used for long, are taken out of the maps.
//!
//! The kernel only marks them: the last packets of a flow still need the way, and a hash map's entry of a live flow must
//! never go by itself.

use aya::maps::{HashMap, MapData};
use health_common::{flow::Moved, net::FlowKey};
use health_core::{Span, Timestamp};

use super::maps::Maps;

/// The last acknowledgements and repeats after the end.
const AFTER_END: Span = Span::from_secs(10);

/// A redirected flow without a packet for this long has lost its ends. Above the keep-alive time of Linux (2 h).
const IDLE_MAX: Span = Span::from_secs(3 * 3600);

/// Entries looked at in one round, so that a full table does not hold the loop.
const AT_ONCE: usize = 20_000;

/// One round. Entries removed.
pub(super) fn round(maps: &mut Maps, now: Timestamp) -> u64 {
    family(&mut maps.moved_out_v4, &mut maps.moved_back_v4, now)
        + family(&mut maps.moved_out_v6, &mut maps.moved_back_v6, now)
}

fn family<K: FlowKey + aya::Pod>(
    out: &mut HashMap<MapData, K, Moved>,
    back: &mut HashMap<MapData, K, Moved>,
    now: Timestamp,
) -> u64 {
    let over: Vec<(K, Moved)> = out.iter().flatten().take(AT_ONCE).filter(|(_, moved)| is_over(moved, now)).collect();
    let mut removed = 0;
    for (key, moved) in over {
        // A new flow may have taken the tuple since it was read: then it is not over any more.
        if out.get(&key, 0).is_ok_and(|current| is_over(&current, now)) {
            drop(back.remove(&key.with_remote(&moved.to)));
            removed += u64::from(out.remove(&key).is_ok());
        }
    }
    removed
}

fn is_over(moved: &Moved, now: Timestamp) -> bool {
    if moved.ended_ns == 0 {
        now.since(Timestamp(moved.seen_ns)) > IDLE_MAX
    } else {
        now.since(Timestamp(moved.ended_ns)) > AFTER_END
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_packets_still_find_their_way() {
        let at = |secs| Timestamp(Span::from_secs(secs).0);
        let ended = Moved { ended_ns: at(100).0, seen_ns: at(100).0, ..Moved::default() };
        assert!(!is_over(&ended, at(105)));
        assert!(is_over(&ended, at(111)));
        let quiet = Moved { ended_ns: 0, seen_ns: at(100).0, ..Moved::default() };
        assert!(!is_over(&quiet, at(100 + 3 * 3600)));
        assert!(is_over(&quiet, at(101 + 3 * 3600)));
    }
}
