//! Every key of the contract (`config.example.toml` of the design), as data.
//!
//! A key is `on` (read by this version), `later` (of the contract, refused until its part is built: a key that is
//! accepted and ignored is a promise broken at night), or not here at all (a mistake).

/// One key of a table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Key {
    pub(super) name: &'static str,
    /// Whether this version reads it.
    pub(super) supported: bool,
    pub(super) shape: Shape,
}

/// What stands behind a key.
#[derive(Clone, Copy, Debug)]
pub(super) enum Shape {
    /// A value that its reader judges.
    Value,
    /// A table, or an array of tables, with these keys.
    Table(&'static [Key]),
    /// A table whose keys are the operator's own words.
    Free,
}

const fn on(name: &'static str) -> Key {
    Key { name, supported: true, shape: Shape::Value }
}

const fn table(name: &'static str, keys: &'static [Key]) -> Key {
    Key { name, supported: true, shape: Shape::Table(keys) }
}

const fn free(name: &'static str) -> Key {
    Key { name, supported: true, shape: Shape::Free }
}

const fn later(name: &'static str) -> Key {
    Key { name, supported: false, shape: Shape::Value }
}

const fn later_table(name: &'static str, keys: &'static [Key]) -> Key {
    Key { name, supported: false, shape: Shape::Table(keys) }
}

/// Keys at the top of a file.
pub(super) const ROOT: &[Key] = &[
    later("include"),
    table("node", NODE),
    table("control", CONTROL),
    later_table("cluster", CLUSTER),
    free("signing"),
    later_table("hook", HOOK),
    table("defaults", DEFAULTS),
    table("service", SERVICE),
];

const NODE: &[Key] = &[
    on("name"),
    on("interfaces"),
    on("client_interfaces"),
    on("xdp"),
    on("cgroup"),
    on("netns"),
    on("mode"),
    on("state_dir"),
    on("pin_dir"),
    on("redirect_allow"),
    table("bypass", &[on("mark"), on("uids"), on("cgroups")]),
    table("limits", &[on("origins"), on("frontends"), on("half_open"), on("flows"), on("moved"), on("checks_per_s")]),
    table("governor", &[on("causes_at_once"), on("moves_per_min"), on("per_standby_at_once")]),
    table("metrics", &[on("origin_detail"), on("histograms")]),
];

const CONTROL: &[Key] = &[
    on("listen"),
    on("socket"),
    later_table("tls", &[later("cert"), later("key"), later("client_ca")]),
    later_table("token_files", &[later("read"), later("operate"), later("approve")]),
    later_table("roles", &[later("read"), later("operate"), later("approve")]),
];

const CLUSTER: &[Key] = &[
    later("etcd"),
    later_table("votes", &[later("quorum"), later("nodes_min"), later("ttl"), later("on_lost")]),
    later("probers"),
];

const HOOK: &[Key] = &[later("on"), later("exec"), later("url"), later("timeout")];

const DEFAULTS: &[Key] = &[table("policy", POLICY)];

const POLICY: &[Key] = &[
    on("preset"),
    on("fall"),
    on("rise"),
    on("passive"),
    on("rescue"),
    on("window"),
    table("samples_min", &[on("passive"), on("active")]),
    on("fault_rule"),
    table("success_below_percent", &[on("degraded"), on("high_risk"), on("fault")]),
    table("state_weight_percent", &[on("unknown"), on("healthy"), on("degraded"), on("high_risk"), on("fault")]),
    table("hold_down", &[on("base"), on("max")]),
    on("return_path"),
    table("response_timeout", &[on("learn"), on("min"), on("initial"), on("max"), on("off")]),
    table("syn_timeout", &[on("learn"), on("min"), on("initial"), on("max"), on("sockets"), on("sockets_min")]),
    table(
        "latency",
        &[
            on("learn"),
            on("history"),
            on("factor_percent"),
            on("add"),
            on("buckets"),
            on("samples_min"),
            table("high_risk", &[on("factor_percent"), on("add")]),
        ],
    ),
    table(
        "trip",
        &[
            on("kernel"),
            on("after"),
            on("within"),
            on("spread_min"),
            on("silence_min"),
            on("on_5xx"),
            on("half_open_after"),
            on("half_open_max"),
            on("max_percent"),
        ],
    ),
    on("min_usable_percent"),
    on("panic_percent"),
    on("overflow"),
    on("move"),
    on("on_fault"),
    on("stalled_for"),
    on("reset_after"),
    on("resets_per_s"),
    table("mitigation", &[on("file"), on("expires"), on("evidence_percent"), on("reset_spread_min")]),
    table(
        "failback",
        &[
            on("observe_for"),
            on("stages"),
            on("stage_for"),
            on("approval"),
            on("approve"),
            on("approval_expires"),
            on("window"),
            table("canary", &[on("fail_over_standby_percent"), on("ttfb_factor_percent"), on("flows_min")]),
        ],
    ),
];

const SERVICE: &[Key] = &[
    on("name"),
    later("tenant"),
    on("mode"),
    on("vips"),
    on("guard"),
    on("balance"),
    later("affinity"),
    later_table("dns", &[later("name"), later("server"), later("key_file"), later("ttl")]),
    later_table("discover", &[later("kubernetes"), later("priority")]),
    table("origin", ORIGIN),
    table("check", CHECK),
    table("policy", POLICY),
];

const ORIGIN: &[Key] = &[
    on("name"),
    on("address"),
    on("family"),
    on("priority"),
    on("weight"),
    on("guard"),
    on("capacity_cps"),
    on("capacity_conns"),
    on("capacity_scope"),
    table("pkcs11", &[on("module"), on("serial"), on("label"), free("env"), on("user"), on("memory_max")]),
];

const CHECK: &[Key] = &[
    on("name"),
    on("type"),
    on("interval"),
    on("timeout"),
    on("slow"),
    on("url"),
    on("method"),
    free("headers"),
    table("expect", EXPECT),
    on("needs"),
    on("critical"),
    on("verify"),
    on("http"),
    on("interval_fast"),
    on("interval_recover"),
    on("interval_max"),
    on("sign"),
    table("source", &[on("address"), on("interface")]),
    table("tls", &[on("ca"), on("verify"), on("cert"), on("key"), on("server_name"), on("expiry_warn")]),
    // Keys of other kinds.
    on("send"),
    on("alpn"),
    on("helo"),
    on("starttls"),
    on("query"),
    on("record"),
    on("transport"),
    on("answer"),
    on("service"),
    on("size"),
    on("exec"),
    on("user"),
    on("dynamic_weight"),
    table("request", &[on("method"), on("url"), free("headers"), on("body"), on("body_file"), table("expect", EXPECT)]),
    on("firmware"),
    on("hardware"),
    on("flags_forbid"),
    table("clock", &[on("interval"), on("drift_max"), on("require")]),
    on("sessions_max"),
    on("orphan_ttl"),
    on("removed_fall"),
    on("operation"),
    on("key"),
    on("mechanism"),
    on("public_key"),
    on("pin_file"),
    table("deadlines", &[on("load"), on("select"), on("login"), on("info"), on("business"), on("close")]),
    on("confirm"),
    on("on_auth_failure"),
];

const EXPECT: &[Key] = &[
    on("status"),
    on("body"),
    on("body_max"),
    on("status_slow"),
    on("redirect"),
    free("headers"),
    free("json"),
    on("digest"),
    on("trim"),
    on("json_cast"),
    table("blocked", &[on("status"), free("headers")]),
];

/// Tables that hold a key of this name, written as in a file; for a key that stands in the wrong place.
pub(super) fn homes_of(name: &str) -> Vec<String> {
    fn walk(keys: &[Key], path: &str, name: &str, homes: &mut Vec<String>) {
        for key in keys {
            if key.name == name && key.supported {
                homes.push(path.to_owned());
            }
            if let Shape::Table(inner) = key.shape {
                let path = if path.is_empty() { key.name.to_owned() } else { format!("{path}.{}", key.name) };
                walk(inner, &path, name, homes);
            }
        }
    }
    let mut homes = Vec::new();
    walk(ROOT, "", name, &mut homes);
    homes
}
