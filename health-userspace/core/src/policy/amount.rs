//! The values of a policy by the names of their keys.

use super::Policy;
use crate::engine::Amount;

impl Policy {
    /// The value of a key that rules compare with, by its name in the configuration. `None` for others.
    #[must_use]
    pub fn amount(&self, key: &str) -> Option<Amount> {
        let percent = |value: u8| Amount::Percent(u64::from(value));
        let amount = match key {
            "fall" => Amount::Count(u64::from(self.fall)),
            "rise" => Amount::Count(u64::from(self.rise)),
            "window" => Amount::Time(self.window),
            "samples_min.passive" => Amount::Count(u64::from(self.samples_min.passive)),
            "samples_min.active" => Amount::Count(u64::from(self.samples_min.active)),
            "success_below_percent.degraded" => percent(self.success_below_percent.degraded),
            "success_below_percent.high_risk" => percent(self.success_below_percent.high_risk),
            "success_below_percent.fault" => percent(self.success_below_percent.fault),
            "latency.factor_percent" => Amount::Percent(u64::from(self.latency.degraded.factor_percent)),
            "latency.add" => Amount::Time(self.latency.degraded.add),
            "latency.buckets" => Amount::Count(u64::from(self.latency.buckets)),
            "latency.samples_min" => Amount::Count(u64::from(self.latency.samples_min)),
            "latency.high_risk.factor_percent" => Amount::Percent(u64::from(self.latency.high_risk.factor_percent)),
            "latency.high_risk.add" => Amount::Time(self.latency.high_risk.add),
            "hold_down.base" => Amount::Time(self.hold_down.base),
            "hold_down.max" => Amount::Time(self.hold_down.max),
            "panic_percent" => percent(self.panic_percent),
            "min_usable_percent" => percent(self.min_usable_percent),
            "trip.after" => Amount::Count(u64::from(self.trip.after)),
            "trip.within" => Amount::Time(self.trip.within),
            "trip.spread_min" => Amount::Count(u64::from(self.trip.spread_min)),
            "failback.observe_for" => Amount::Time(self.failback.observe_for),
            "failback.stage_for" => Amount::Time(self.failback.stage_for),
            "failback.approval_expires" => Amount::Time(self.failback.approval_expires),
            "failback.canary.fail_over_standby_percent" => percent(self.failback.canary.fail_over_standby_percent),
            "failback.canary.ttfb_factor_percent" => {
                Amount::Percent(u64::from(self.failback.canary.ttfb_factor_percent))
            }
            "failback.canary.flows_min" => Amount::Count(u64::from(self.failback.canary.flows_min)),
            _ => return None,
        };
        Some(amount)
    }
}
