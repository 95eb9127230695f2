//! `script`: which program, run by whom.

use super::{Out, Section};
use crate::config::{
    read::At,
    resolved::{text, texts},
};
use nix::unistd::{Gid, Uid, User};
use std::path::Path;

/// Who runs scripts where the file says nothing: nobody is there on every system and owns nothing.
const USER_DEFAULT: &str = "nobody";

/// A script check, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptCheck {
    /// The program's absolute path, then its arguments, each as it is: no shell reads them.
    pub exec: Vec<String>,
    /// Who runs it. Default nobody.
    pub user: String,
    /// The same by number, and the group.
    pub ids: (Uid, Gid),
    /// Whether exit codes from 2 to 255 are passes that set the origin's base weight to the code less 2. Default false:
    /// they are failures, as in Keepalived.
    pub dynamic_weight: bool,
}

pub(super) fn read(section: &Section<'_>, check: &str) -> ScriptCheck {
    let example = "write, for example, exec = [\"/usr/lib/sluice/checks/mq\", \"--fast\"]";
    if section.get("exec").is_none() {
        section.sink().error(section.at(), format!("check `{check}` has no exec"), example);
    }
    let list = section.texts("exec", "/usr/lib/sluice/checks/mq");
    if let Some(list) = &list {
        match list.first() {
            None => section.error("exec", format!("check `{check}`: `exec` names no program"), example),
            Some(At { value, at }) if !Path::new(value).is_absolute() => {
                let message = format!("\"{}\" is no absolute path; nothing is searched", value.escape_debug());
                section.sink().error(at.clone(), message, example);
            }
            Some(_) => {}
        }
        for At { value, at } in list.iter().filter(|word| word.value.contains('\0')) {
            let message = format!("\"{}\" holds a zero byte, which no program can be given", value.escape_debug());
            section.sink().error(at.clone(), message, "remove it");
        }
    }
    let (user, ids) = user(section, check);
    ScriptCheck {
        exec: list.unwrap_or_default().into_iter().map(|word| word.value.to_owned()).collect(),
        user,
        ids,
        dynamic_weight: section.flag("dynamic_weight").unwrap_or(false),
    }
}

fn user(section: &Section<'_>, check: &str) -> (String, (Uid, Gid)) {
    let written = section.text("user", "sluice-check");
    let name = written.map_or(USER_DEFAULT, |user| user.value);
    // The name service of this machine is asked: a user that isn't there would make every round a local failure.
    let Ok(Some(user)) = User::from_name(name) else {
        let message = format!("check `{check}`: this machine has no user `{}`", name.escape_debug());
        let fix = "create the user (as in `useradd --system sluice-check`), or name another as user = \"…\"";
        section.error("user", message, fix);
        return (name.to_owned(), (Uid::from_raw(65_534), Gid::from_raw(65_534)));
    };
    if user.uid.is_root() {
        let message = format!("check `{check}`: scripts are not run as root");
        section.error("user", message, "name a user of its own, which may do only what the script needs");
    }
    (name.to_owned(), (user.uid, user.gid))
}

impl ScriptCheck {
    pub(super) fn write(&self, out: &mut Out) {
        out.key("exec", texts(&self.exec));
        out.key("user", text(&self.user));
        out.key("dynamic_weight", self.dynamic_weight);
    }
}
