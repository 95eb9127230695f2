//! Functions whose answers rules may change.
#![expect(non_snake_case, reason = "PKCS#11 names them")]

use std::ffi::c_void;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::slice;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use cryptoki_sys::{
    CK_BBOOL, CK_BYTE, CK_FLAGS, CK_FUNCTION_LIST, CK_NOTIFY, CK_RV, CK_SESSION_HANDLE, CK_SLOT_ID, CK_TOKEN_INFO,
    CK_ULONG, CK_USER_TYPE, CK_UTF8CHAR, CKR_OK, CKR_PIN_INCORRECT, CKR_PIN_LOCKED, CKR_SESSION_COUNT,
};

use crate::act::{SESSIONS, Wrong, around};
use crate::calls::pass;
use crate::rules::Sessions;
use crate::{place, token};

/// Wrong PINs so far.
const WRONG_PINS: &str = "wrong-pins";
/// Far beyond any memory.
const HUGE: CK_ULONG = 1 << 46;

/// Functions that make `length` bytes at `output` from data.
macro_rules! output {
    ($($name:ident),*) => {
        $(unsafe extern "C" fn $name(
            session: CK_SESSION_HANDLE,
            data: *mut CK_BYTE,
            data_length: CK_ULONG,
            output: *mut CK_BYTE,
            length: *mut CK_ULONG,
        ) -> CK_RV {
            around(stringify!($name), |twist| {
                if !output.is_null() && !data.is_null() {
                    // SAFETY: the caller's data has this length.
                    note(concat!(stringify!($name), ":data"), unsafe { bytes(data, data_length) });
                }
                let value = pass!($name(session, data, data_length, output, length));
                if value == CKR_OK && twist.wrong == Some(Wrong::Huge) {
                    // SAFETY: the real function has just written the length there.
                    unsafe { length.write(HUGE) };
                } else if value == CKR_OK && twist.wrong == Some(Wrong::Corrupt) && !output.is_null() {
                    // SAFETY: as above.
                    let made = unsafe { length.read() };
                    // SAFETY: the real function has just written so many bytes there.
                    let made = unsafe { bytes(output, made) };
                    if let Some(last) = made.last_mut() {
                        *last ^= 1;
                    }
                }
                value
            })
        })*
    };
}

/// Logs a digest of what a call works on: a test sees whether two calls had the same.
fn note(what: &str, data: &[CK_BYTE]) {
    let mut hash = DefaultHasher::new();
    data.hash(&mut hash);
    place::log(what, &format!("{:016x}", hash.finish()), SESSIONS.load(Ordering::Relaxed));
}

/// The caller's buffer.
///
/// # Safety
///
/// `start` names `length` bytes that nobody else uses during `'a`.
unsafe fn bytes<'a>(start: *mut CK_BYTE, length: CK_ULONG) -> &'a mut [CK_BYTE] {
    // SAFETY: as the caller promises; CK_ULONG is as wide as usize where these tests run.
    unsafe { slice::from_raw_parts_mut(start, usize::try_from(length).unwrap_or_default()) }
}

output!(C_Sign, C_Encrypt, C_Decrypt);

unsafe extern "C" fn C_Verify(
    session: CK_SESSION_HANDLE,
    data: *mut CK_BYTE,
    data_length: CK_ULONG,
    signature: *mut CK_BYTE,
    length: CK_ULONG,
) -> CK_RV {
    around("C_Verify", |twist| {
        let value = pass!(C_Verify(session, data, data_length, signature, length));
        if twist.wrong == Some(Wrong::Lie) { CKR_OK } else { value }
    })
}

unsafe extern "C" fn C_GenerateRandom(session: CK_SESSION_HANDLE, output: *mut CK_BYTE, length: CK_ULONG) -> CK_RV {
    around("C_GenerateRandom", |twist| {
        let value = pass!(C_GenerateRandom(session, output, length));
        if value == CKR_OK && twist.wrong == Some(Wrong::Corrupt) && !output.is_null() {
            // SAFETY: the caller's buffer has this length.
            unsafe { bytes(output, length) }.fill(0);
        }
        value
    })
}

unsafe extern "C" fn C_GetSlotList(present: CK_BBOOL, slots: *mut CK_SLOT_ID, count: *mut CK_ULONG) -> CK_RV {
    around("C_GetSlotList", |twist| {
        let value = pass!(C_GetSlotList(present, slots, count));
        if value == CKR_OK && twist.wrong == Some(Wrong::Huge) {
            // SAFETY: the real function has just written the count there.
            unsafe { count.write(HUGE) };
        }
        value
    })
}

unsafe extern "C" fn C_GetTokenInfo(slot: CK_SLOT_ID, info: *mut CK_TOKEN_INFO) -> CK_RV {
    around("C_GetTokenInfo", |_| {
        let value = pass!(C_GetTokenInfo(slot, info));
        if value != CKR_OK {
            return value;
        }
        // SAFETY: the real function has just filled the caller's structure.
        let info = unsafe { &mut *info };
        let rules = place::rules();
        token::change(info, &rules.token, SystemTime::now());
        if let Some(limit) = rules.sessions {
            token::change_sessions(info, limit, SESSIONS.load(Ordering::Relaxed));
        }
        if let Some(tries) = rules.pin_tries {
            info.flags |= token::pin_flags(place::counted(WRONG_PINS), tries);
        }
        value
    })
}

unsafe extern "C" fn C_OpenSession(
    slot: CK_SLOT_ID,
    flags: CK_FLAGS,
    application: *mut c_void,
    notify: CK_NOTIFY,
    session: *mut CK_SESSION_HANDLE,
) -> CK_RV {
    around("C_OpenSession", |_| {
        let held = |limit: Sessions| limit.foreign + SESSIONS.load(Ordering::Relaxed) >= limit.max;
        if place::rules().sessions.is_some_and(held) {
            return CKR_SESSION_COUNT;
        }
        let value = pass!(C_OpenSession(slot, flags, application, notify, session));
        if value == CKR_OK {
            SESSIONS.fetch_add(1, Ordering::Relaxed);
        }
        value
    })
}

unsafe extern "C" fn C_CloseSession(session: CK_SESSION_HANDLE) -> CK_RV {
    around("C_CloseSession", |twist| {
        if twist.wrong == Some(Wrong::Leak) {
            return CKR_OK;
        }
        let value = pass!(C_CloseSession(session));
        if value == CKR_OK {
            SESSIONS.fetch_sub(1, Ordering::Relaxed);
        }
        value
    })
}

unsafe extern "C" fn C_CloseAllSessions(slot: CK_SLOT_ID) -> CK_RV {
    around("C_CloseAllSessions", |_| ended(pass!(C_CloseAllSessions(slot))))
}

unsafe extern "C" fn C_Finalize(reserved: *mut c_void) -> CK_RV {
    around("C_Finalize", |_| ended(pass!(C_Finalize(reserved))))
}

fn ended(value: CK_RV) -> CK_RV {
    if value == CKR_OK {
        SESSIONS.store(0, Ordering::Relaxed);
    }
    value
}

unsafe extern "C" fn C_Login(
    session: CK_SESSION_HANDLE,
    user: CK_USER_TYPE,
    pin: *mut CK_UTF8CHAR,
    length: CK_ULONG,
) -> CK_RV {
    around("C_Login", |_| {
        let tries = place::rules().pin_tries;
        if tries.is_some_and(|tries| place::counted(WRONG_PINS) >= tries) {
            return CKR_PIN_LOCKED;
        }
        let value = pass!(C_Login(session, user, pin, length));
        match (tries, value) {
            (Some(_), CKR_PIN_INCORRECT) => _ = place::count(WRONG_PINS),
            (Some(_), CKR_OK) => place::reset(WRONG_PINS),
            _ => {}
        }
        value
    })
}

pub(crate) fn overlay(list: &mut CK_FUNCTION_LIST) {
    list.C_Sign = Some(C_Sign);
    list.C_Encrypt = Some(C_Encrypt);
    list.C_Decrypt = Some(C_Decrypt);
    list.C_Verify = Some(C_Verify);
    list.C_GenerateRandom = Some(C_GenerateRandom);
    list.C_GetSlotList = Some(C_GetSlotList);
    list.C_GetTokenInfo = Some(C_GetTokenInfo);
    list.C_OpenSession = Some(C_OpenSession);
    list.C_CloseSession = Some(C_CloseSession);
    list.C_CloseAllSessions = Some(C_CloseAllSessions);
    list.C_Finalize = Some(C_Finalize);
    list.C_Login = Some(C_Login);
}
