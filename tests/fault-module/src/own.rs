//! A module of its own, for what SoftHSM can't be made to do: slots in any order, odd labels, tokens that nobody set up.
//!
//! It has slots, tokens, sessions, logins and random bytes, and no keys.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ptr;
use std::slice;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cryptoki_sys::{
    CK_BBOOL, CK_BYTE, CK_FLAGS, CK_FUNCTION_LIST, CK_INFO, CK_MECHANISM_TYPE, CK_NOTIFY, CK_RV, CK_SESSION_HANDLE,
    CK_SESSION_INFO, CK_SLOT_ID, CK_SLOT_INFO, CK_TOKEN_INFO, CK_ULONG, CK_UNAVAILABLE_INFORMATION, CK_USER_TYPE,
    CK_UTF8CHAR, CK_VERSION, CKF_LOGIN_REQUIRED, CKF_RNG, CKF_RW_SESSION, CKF_TOKEN_INITIALIZED, CKF_TOKEN_PRESENT,
    CKF_USER_PIN_INITIALIZED, CKR_ARGUMENTS_BAD, CKR_BUFFER_TOO_SMALL, CKR_CRYPTOKI_ALREADY_INITIALIZED,
    CKR_CRYPTOKI_NOT_INITIALIZED, CKR_OK, CKR_PIN_INCORRECT, CKR_SESSION_HANDLE_INVALID, CKR_SLOT_ID_INVALID,
    CKR_TOKEN_NOT_RECOGNIZED, CKR_USER_ALREADY_LOGGED_IN, CKR_USER_NOT_LOGGED_IN, CKS_RO_PUBLIC_SESSION,
    CKS_RO_USER_FUNCTIONS, CKS_RW_PUBLIC_SESSION, CKS_RW_USER_FUNCTIONS,
};

use crate::place;
use crate::rules::Slot;
use crate::token::fill;

/// Of this module, its slots and tokens.
const VERSION: CK_VERSION = CK_VERSION { major: 2, minor: 6 };

/// What C_Initialize begins and C_Finalize ends.
#[derive(Debug, Default)]
struct State {
    is_initialised: bool,
    /// Slot and flags of each session.
    sessions: BTreeMap<CK_SESSION_HANDLE, (CK_SLOT_ID, CK_FLAGS)>,
    next: CK_SESSION_HANDLE,
    logged_in: Option<CK_SLOT_ID>,
}

static STATE: Mutex<Option<State>> = Mutex::new(None);

fn state() -> MutexGuard<'static, Option<State>> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `call` with the state, if the module is initialised.
fn with(call: impl FnOnce(&mut State) -> Result<(), CK_RV>) -> CK_RV {
    match state().as_mut().filter(|state| state.is_initialised) {
        Some(state) => call(state).err().unwrap_or(CKR_OK),
        None => CKR_CRYPTOKI_NOT_INITIALIZED,
    }
}

fn slot(id: CK_SLOT_ID) -> Result<Slot, CK_RV> {
    place::rules().slots.into_iter().find(|slot| slot.id == id).ok_or(CKR_SLOT_ID_INVALID)
}

/// Writes `value` where the caller wants it.
///
/// # Safety
///
/// `place` is null or a caller's place for a `T`, as PKCS#11 asks of every caller.
unsafe fn give<T>(place: *mut T, value: T) -> Result<(), CK_RV> {
    if place.is_null() {
        return Err(CKR_ARGUMENTS_BAD);
    }
    // SAFETY: it isn't null, and the rest is the caller's promise.
    unsafe { place.write(value) };
    Ok(())
}

unsafe extern "C" fn initialize(_arguments: *mut c_void) -> CK_RV {
    let mut state = state();
    let state = state.get_or_insert_default();
    if state.is_initialised {
        return CKR_CRYPTOKI_ALREADY_INITIALIZED;
    }
    *state = State { is_initialised: true, next: 1, ..State::default() };
    CKR_OK
}

unsafe extern "C" fn finalize(_reserved: *mut c_void) -> CK_RV {
    with(|state| {
        *state = State::default();
        Ok(())
    })
}

unsafe extern "C" fn info(place: *mut CK_INFO) -> CK_RV {
    let info = CK_INFO {
        cryptokiVersion: CK_VERSION { major: 2, minor: 40 },
        manufacturerID: fill("Sluice tests", b' '),
        libraryDescription: fill("fault module", b' '),
        libraryVersion: VERSION,
        ..CK_INFO::default()
    };
    // SAFETY: the caller's place, as the standard asks.
    with(|_| unsafe { give(place, info) })
}

unsafe extern "C" fn slot_list(_present: CK_BBOOL, slots: *mut CK_SLOT_ID, count: *mut CK_ULONG) -> CK_RV {
    with(|_| {
        let ids: Vec<CK_SLOT_ID> = place::rules().slots.iter().map(|slot| slot.id).collect();
        // SAFETY: the standard asks the caller for a count, of which null is refused.
        let room = unsafe { count.as_ref() }.copied().ok_or(CKR_ARGUMENTS_BAD)?;
        // SAFETY: as above.
        unsafe { give(count, ids.len() as CK_ULONG) }?;
        if slots.is_null() {
            return Ok(());
        }
        if room < ids.len() as CK_ULONG {
            return Err(CKR_BUFFER_TOO_SMALL);
        }
        // SAFETY: the caller has room for so many, and the list is no part of it.
        unsafe { ptr::copy_nonoverlapping(ids.as_ptr(), slots, ids.len()) };
        Ok(())
    })
}

unsafe extern "C" fn slot_info(id: CK_SLOT_ID, place: *mut CK_SLOT_INFO) -> CK_RV {
    with(|_| {
        slot(id)?;
        let info = CK_SLOT_INFO {
            slotDescription: fill("slot of the fault module", b' '),
            manufacturerID: fill("Sluice tests", b' '),
            flags: CKF_TOKEN_PRESENT,
            hardwareVersion: VERSION,
            firmwareVersion: VERSION,
        };
        // SAFETY: the caller's place, as the standard asks.
        unsafe { give(place, info) }
    })
}

unsafe extern "C" fn token_info(id: CK_SLOT_ID, place: *mut CK_TOKEN_INFO) -> CK_RV {
    with(|_| {
        let slot = slot(id)?;
        let ready = CKF_TOKEN_INITIALIZED | CKF_USER_PIN_INITIALIZED | CKF_LOGIN_REQUIRED;
        let info = CK_TOKEN_INFO {
            label: fill(&slot.label, if slot.nul_padded { 0 } else { b' ' }),
            manufacturerID: fill("Sluice tests", b' '),
            model: fill("fault module", b' '),
            serialNumber: fill(&slot.serial, b' '),
            flags: CKF_RNG | if slot.uninitialised { 0 } else { ready },
            ulSessionCount: CK_UNAVAILABLE_INFORMATION,
            ulRwSessionCount: CK_UNAVAILABLE_INFORMATION,
            ulMaxPinLen: 255,
            ulMinPinLen: 4,
            hardwareVersion: VERSION,
            firmwareVersion: VERSION,
            utcTime: [b' '; 16],
            ..CK_TOKEN_INFO::default()
        };
        // SAFETY: the caller's place, as the standard asks.
        unsafe { give(place, info) }
    })
}

unsafe extern "C" fn mechanism_list(id: CK_SLOT_ID, _list: *mut CK_MECHANISM_TYPE, count: *mut CK_ULONG) -> CK_RV {
    with(|_| {
        slot(id)?;
        // SAFETY: the caller's place, as the standard asks.
        unsafe { give(count, 0) }
    })
}

unsafe extern "C" fn open_session(
    id: CK_SLOT_ID,
    flags: CK_FLAGS,
    _application: *mut c_void,
    _notify: CK_NOTIFY,
    place: *mut CK_SESSION_HANDLE,
) -> CK_RV {
    with(|state| {
        if slot(id)?.uninitialised {
            return Err(CKR_TOKEN_NOT_RECOGNIZED);
        }
        let session = state.next;
        state.next += 1;
        state.sessions.insert(session, (id, flags));
        // SAFETY: the caller's place, as the standard asks.
        unsafe { give(place, session) }
    })
}

unsafe extern "C" fn close_session(session: CK_SESSION_HANDLE) -> CK_RV {
    with(|state| {
        state.sessions.remove(&session).ok_or(CKR_SESSION_HANDLE_INVALID)?;
        if state.sessions.is_empty() {
            state.logged_in = None;
        }
        Ok(())
    })
}

unsafe extern "C" fn close_all_sessions(id: CK_SLOT_ID) -> CK_RV {
    with(|state| {
        state.sessions.retain(|_, (slot, _)| *slot != id);
        state.logged_in = state.logged_in.filter(|slot| *slot != id);
        Ok(())
    })
}

unsafe extern "C" fn session_info(session: CK_SESSION_HANDLE, place: *mut CK_SESSION_INFO) -> CK_RV {
    with(|state| {
        let (slot, flags) = *state.sessions.get(&session).ok_or(CKR_SESSION_HANDLE_INVALID)?;
        let kind = match (flags & CKF_RW_SESSION != 0, state.logged_in == Some(slot)) {
            (false, false) => CKS_RO_PUBLIC_SESSION,
            (false, true) => CKS_RO_USER_FUNCTIONS,
            (true, false) => CKS_RW_PUBLIC_SESSION,
            (true, true) => CKS_RW_USER_FUNCTIONS,
        };
        let info = CK_SESSION_INFO { slotID: slot, state: kind, flags, ulDeviceError: 0 };
        // SAFETY: the caller's place, as the standard asks.
        unsafe { give(place, info) }
    })
}

unsafe extern "C" fn login(
    session: CK_SESSION_HANDLE,
    _user: CK_USER_TYPE,
    pin: *mut CK_UTF8CHAR,
    length: CK_ULONG,
) -> CK_RV {
    with(|state| {
        let (id, _) = *state.sessions.get(&session).ok_or(CKR_SESSION_HANDLE_INVALID)?;
        if state.logged_in == Some(id) {
            return Err(CKR_USER_ALREADY_LOGGED_IN);
        }
        if pin.is_null() {
            return Err(CKR_ARGUMENTS_BAD);
        }
        let length = usize::try_from(length).unwrap_or_default();
        // SAFETY: the caller's PIN has this length.
        let given = unsafe { slice::from_raw_parts(pin, length) };
        if slot(id)?.pin.is_some_and(|pin| pin.as_bytes() != given) {
            return Err(CKR_PIN_INCORRECT);
        }
        state.logged_in = Some(id);
        Ok(())
    })
}

unsafe extern "C" fn logout(session: CK_SESSION_HANDLE) -> CK_RV {
    with(|state| {
        state.sessions.get(&session).ok_or(CKR_SESSION_HANDLE_INVALID)?;
        state.logged_in.take().map(drop).ok_or(CKR_USER_NOT_LOGGED_IN)
    })
}

unsafe extern "C" fn generate_random(session: CK_SESSION_HANDLE, output: *mut CK_BYTE, length: CK_ULONG) -> CK_RV {
    with(|state| {
        state.sessions.get(&session).ok_or(CKR_SESSION_HANDLE_INVALID)?;
        let length = usize::try_from(length).unwrap_or_default();
        // SAFETY: the caller's buffer has this length.
        let got = unsafe { libc::getrandom(output.cast(), length, 0) };
        if usize::try_from(got) == Ok(length) { Ok(()) } else { Err(CKR_ARGUMENTS_BAD) }
    })
}

/// This module as a function list. What it can't do isn't there.
pub(crate) fn list() -> CK_FUNCTION_LIST {
    CK_FUNCTION_LIST {
        version: CK_VERSION { major: 2, minor: 40 },
        C_Initialize: Some(initialize),
        C_Finalize: Some(finalize),
        C_GetInfo: Some(info),
        C_GetSlotList: Some(slot_list),
        C_GetSlotInfo: Some(slot_info),
        C_GetTokenInfo: Some(token_info),
        C_GetMechanismList: Some(mechanism_list),
        C_OpenSession: Some(open_session),
        C_CloseSession: Some(close_session),
        C_CloseAllSessions: Some(close_all_sessions),
        C_GetSessionInfo: Some(session_info),
        C_Login: Some(login),
        C_Logout: Some(logout),
        C_GenerateRandom: Some(generate_random),
        ..CK_FUNCTION_LIST::default()
    }
}
