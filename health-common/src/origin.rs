//! Origins: what userspace says of them, what the kernel remembers of them, and what it counts.

use crate::{
    cells::{REQUEST_CELLS, SYN_CELLS},
    histogram::Buckets,
    net::Endpoint,
    streak::SPREAD_BITS,
};

/// What userspace says of an origin. Value of the map `origins`.
///
/// Each field stands alone, for readers may see one write half done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Origin {
    /// A trip that began at or before this time has ended. Unit: ns, `bpf_ktime_get_ns()`.
    pub clear_before_ns: u64,
    /// Age at which an unanswered SYN is a failure. 0: never. Unit: ns.
    pub syn_timeout_ns: u64,
    /// Age at which an unanswered request is a failure. 0: never. Unit: ns.
    pub response_timeout_ns: u64,
    /// Longest time that a streak may span. Unit: ns.
    pub within_ns: u64,
    /// Silence that timeouts wait for before they trip. Unit: ns.
    pub silence_min_ns: u64,
    /// First wait before a trial. Unit: ns.
    pub half_open_after_ns: u64,
    /// Longest wait before a trial. Unit: ns.
    pub half_open_max_ns: u64,
    /// [`Origin::BLOCKED`] holds until then; 0: until userspace takes it back. Unit: ns, `bpf_ktime_get_ns()`.
    pub lease_ns: u64,
    /// Time that each new connection takes of its capacity; 0: no limit. 10^9 / `capacity_cps`. Unit: ns.
    pub capacity_ns: u64,
    /// Where it lives.
    pub endpoint: Endpoint,
    /// Interface that leads to it. 0: not known, so nothing can be redirected there by packet.
    pub ifindex: u32,
    /// How often this number was given.
    pub generation: u32,
    /// Failures without a success that trip.
    pub after: u16,
    /// Clients that they must come from.
    pub spread_min: u16,
    /// Its service.
    pub service: u16,
    /// Tier, with [`crate::map::Service::V6`].
    pub tier: u16,
    /// `Origin::…` bits.
    pub flags: u32,
    /// First wait for an answer to a SYN of this host's sockets, while a standby is usable; 0: the stack's own (1 s). Unit:
    /// jiffies.
    pub connect_jiffies: u32,
    /// Largest segment that may be asked for on the way to it (MTU less the headers); 0: not known. Unit: bytes.
    pub mss_max: u32,
    /// So many SYNs lost one after the other, repeats counted, are silence to a re-steer, and not the network's doing; less than 2
    /// mean 2.
    pub silent_from: u32,
}

const _: () = assert!(size_of::<Origin>() == 128);

impl Origin {
    /// The number is in use.
    pub const PRESENT: u32 = 1;
    /// Never chosen while another is usable.
    pub const BLOCKED: u32 = 2;
    /// Trials go on while it is blocked.
    pub const TRIALS: u32 = 4;
    /// The kernel may trip it.
    pub const KERNEL_TRIP: u32 = 8;
    /// Trips and moves are computed and counted, not done.
    pub const OBSERVE: u32 = 16;
    /// Connection attempts to it that fail go to a standby: turn-around, re-steer, SYN timeout.
    pub const RESCUE: u32 = 32;
    /// Answers of HTTP status 5xx count as failed requests.
    pub const ON_5XX: u32 = 64;
    /// When the lease of [`Origin::BLOCKED`] runs out it is tripped, and trials decide.
    pub const LEASE_TRIPS: u32 = 128;
    /// Its answers don't pass this node (`return_path = "none"`): no packet of a flow may be rewritten on the way to it.
    pub const ONE_WAY: u32 = 256;
    /// Trips and rescues are computed and counted, not done; what is planned stays in force.
    pub const FREEZE: u32 = 512;

    /// Whether a bit is set.
    #[inline(always)]
    #[must_use]
    pub const fn is(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }
}

/// What the kernel remembers of an origin. Value of the map `states`. Shared by all CPUs: every field is changed by one
/// atomic operation. Userspace only reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct OriginState {
    /// The trip in force ([`crate::trip::Trip`]); 0 none.
    pub trip: u64,
    /// First bad packet of the streak that tripped, or of the one that runs. Unit: ns.
    pub first_bad_ns: u64,
    /// When the next trial may go. Won by compare-and-swap. Unit: ns.
    pub trial_next_ns: u64,
    /// Wait before the trial after that. Unit: ns.
    pub trial_wait_ns: u64,
    /// When the trial under way began; 0 when none is. Unit: ns.
    pub trial_open_ns: u64,
    /// Trials that failed since the trip.
    pub trials_failed: u64,
    /// Trials that succeeded in a row.
    pub trials_passed: u64,
    /// 1 until a new flow has gone elsewhere.
    pub first_flow_due: u64,
    /// [`crate::streak::Streak`] of refused connections.
    pub connect_failures: u64,
    /// [`crate::streak::Streak`] of early resets.
    pub request_failures: u64,
    /// [`crate::streak::Streak`] of SYNs sent since the last accepted SYN-ACK.
    pub syns_open: u64,
    /// When `syns_open` reached the number that trips. Unit: ns.
    pub syns_reached_ns: u64,
    /// [`crate::streak::Streak`] of requests sent since the last first response byte.
    pub requests_open: u64,
    /// Last first response byte in time. Unit: ns.
    pub answered_ns: u64,
    /// Last packet that was accepted from it. Unit: ns.
    pub last_seen_ns: u64,
    /// Last accepted SYN-ACK; [`Self::UNSEEN`] or 0 before the first. Unit: ns.
    pub connected_ns: u64,
    /// When, at its capacity, the connections admitted so far would all have begun (the theoretical arrival time of the
    /// generic cell rate algorithm, ITU-T I.371 annex A). Unit: ns.
    pub admitted_ns: u64,
    /// Last second in which userspace was told that it is full.
    pub full_told: u64,
    /// The lease ([`Origin::lease_ns`]) whose end was acted on.
    pub lease_over_ns: u64,
    /// Request epoch in which overdue requests were last looked for.
    pub looked_epoch: u64,
    /// Unanswered SYNs of cells that were reused.
    pub syn_timeouts: u64,
    /// Unanswered requests of cells that were reused.
    pub no_responses: u64,
    /// SYNs by the time they were sent ([`crate::cells`]).
    pub syn_cells: [u64; SYN_CELLS],
    /// Requests by the time of their last byte.
    pub request_cells: [u64; REQUEST_CELLS],
}

const _: () = assert!(size_of::<OriginState>() == 22 * 8 + 8 * (SYN_CELLS + REQUEST_CELLS));

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)+) => {
        /// One CPU's counters of one origin, since the maps were made. The kernel never resets one. Value of the map
        /// `counters`; userspace sums over CPUs.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(C)]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)+
            /// When this CPU last said that the origin was seen ([`OriginState::last_seen_ns`]): it spares most packets the shared
            /// word. Unit: ns, in steps of a tick.
            pub seen_ns: u64,
            /// Handshake RTT, never from a repeated SYN (RFC 6298 §3).
            pub rtt: Buckets,
            /// From a segment's timestamp to its echo (RFC 7323 §4): an upper bound, for the other side may delay its
            /// acknowledgement.
            pub stamp_rtt: Buckets,
            /// Last request byte to first response byte.
            pub ttfb: Buckets,
            /// Connections that failed, by the place of their client in streaks: refused, unreachable, SYNs repeated
            /// unanswered or answered too late. Shares, no counts: a client may be noted more than once for a failure.
            pub connect_by: Clients,
            /// Requests that failed, likewise: reset early, status 5xx, answered too late, or given up after the response
            /// timeout.
            pub request_by: Clients,
        }

        impl Counters {
            /// Names of the signals, in the order of [`Counters::signals`].
            pub const NAMES: &'static [&'static str] = &[$(stringify!($name),)+];

            /// Nothing counted.
            pub const ZERO: Self =
                Self {
                $($name: 0,)+
                seen_ns: 0,
                rtt: [0; crate::histogram::BUCKETS],
                stamp_rtt: [0; crate::histogram::BUCKETS],
                ttfb: [0; crate::histogram::BUCKETS],
                connect_by: [0; SPREAD_BITS as usize],
                request_by: [0; SPREAD_BITS as usize],
            };

            /// Adds another CPU's signals. Histograms are summed by whoever widens them.
            pub const fn add_signals(&mut self, other: &Self) {
                $(self.$name = self.$name.wrapping_add(other.$name);)+
            }

            /// The signals' values.
            #[must_use]
            pub const fn signals(&self) -> [u64; Self::NAMES.len()] {
                [$(self.$name,)+]
            }
        }
    };
}

counters! {
    /// First SYNs sent to it.
    syn,
    /// Repeated SYNs.
    syn_retrans,
    /// Accepted answers to SYNs.
    synack,
    /// Accepted answers that came after the SYN timeout.
    synack_late,
    /// RST answering a SYN, with the right acknowledgement.
    refused,
    /// RST before the first response byte.
    reset_early,
    /// RST in the middle of a response.
    reset_mid,
    /// RST after a response or on an idle flow: no evidence.
    reset_idle,
    /// RST in the window, but not exactly at the next sequence number: no evidence (RFC 9293 §3.10.7, RFC 5961 §3.2).
    rst_suspect,
    /// RST outside of the window: no evidence.
    rst_forged,
    /// ICMP host or network unreachable that quotes one of its flows.
    unreachable,
    /// Requests: bytes sent while no answer was due.
    request,
    /// First response bytes.
    response,
    /// First response bytes that came after the response timeout.
    response_late,
    /// Requests that ended without an answer by the client's or the node's doing, or by an orderly end.
    request_void,
    /// Forwarded flows that their client reset.
    client_abort,
    /// Flows of this host's sockets that the host reset.
    local_drop,
    /// Data segments sent again.
    retrans,
    /// Times that it offered no window.
    zero_window,
    /// Answers of HTTP status 100 to 199, in plain text.
    http_1xx,
    /// Answers of HTTP status 200 to 299.
    http_2xx,
    /// Answers of HTTP status 300 to 399.
    http_3xx,
    /// Answers of HTTP status 400 to 499.
    http_4xx,
    /// Answers of HTTP status 500 to 599.
    http_5xx,
    /// Flows that were established: the node's side has acknowledged the answer.
    opened,
    /// Flows of those that ended.
    closed,
    /// Packets to it, GSO segments counted.
    pkts_out,
    /// Packets from it, GRO segments counted.
    pkts_in,
    /// TCP payload to it.
    bytes_out,
    /// TCP payload from it.
    bytes_in,
    /// New flows that were sent to it although they were addressed elsewhere.
    steered,
    /// Attempts that failed elsewhere and were sent to it: refused ones.
    turned_around,
    /// Attempts that failed elsewhere and were sent to it: repeated SYNs.
    resteered,
    /// New flows that it had no capacity for.
    overflow,
    /// Trips of it.
    trips,
    /// Trips for refused connections.
    trips_refused,
    /// Trips for unanswered SYNs.
    trips_syn_timeout,
    /// Trips for early resets.
    trips_reset_early,
    /// Trips for unanswered requests.
    trips_no_response,
    /// Trips for unreachable hosts or networks.
    trips_unreachable,
    /// Trips for answers of HTTP status 5xx.
    trips_http_5xx,
    /// Trials of it.
    trials,
    /// Trips that the guard or observe mode withheld.
    withheld_trips,
    /// New flows that observe mode left with it although it is tripped.
    withheld_moves,
    /// Failed attempts that observe mode or a freeze left with it.
    withheld_rescues,
}

const _: () = assert!(
    size_of::<Counters>() == 8 * (Counters::NAMES.len() + 1) + 3 * size_of::<Buckets>() + 2 * size_of::<Clients>()
);

/// Failures by the place of their client. Of one CPU; monotonic.
pub type Clients = [u32; SPREAD_BITS as usize];

impl OriginState {
    /// In `connected_ns`: no SYN-ACK was ever accepted, and yet the node's side acknowledged one. Answers take another way.
    pub const UNSEEN: u64 = 1;

    /// Of an origin that nothing is known of.
    pub const NEW: Self = Self {
        trip: 0,
        first_bad_ns: 0,
        trial_next_ns: 0,
        trial_wait_ns: 0,
        trial_open_ns: 0,
        trials_failed: 0,
        trials_passed: 0,
        first_flow_due: 0,
        connect_failures: 0,
        request_failures: 0,
        syns_open: 0,
        syns_reached_ns: 0,
        requests_open: 0,
        answered_ns: 0,
        last_seen_ns: 0,
        connected_ns: 0,
        admitted_ns: 0,
        full_told: 0,
        lease_over_ns: 0,
        looked_epoch: 0,
        syn_timeouts: 0,
        no_responses: 0,
        syn_cells: [0; SYN_CELLS],
        request_cells: [0; REQUEST_CELLS],
    };
}
