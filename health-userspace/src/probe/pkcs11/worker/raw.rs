//! Calls into the module, each by its own pointer from the module's list of functions.
//!
//! `cryptoki` (whose `sys` half gives the types) hides four things that a monitor must see: which of the three calls behind
//! one signature hangs, the whole of `CK_TOKEN_INFO` when its time is malformed, lengths before they are believed, and what
//! C_CloseSession returned. A second list of functions beside cryptoki's own can be another instance of the module
//! (p11-kit), so it is raw calls throughout or not at all.
//!
//! All `unsafe` of the worker's dealings with a module is here and in `operate`. What a module does with the pointers can't
//! be known; that is why it is in a process of its own.

use super::{
    super::protocol::{Info, LibraryInfo, SLOTS_MAX, SlotEntry, SlotInfo, Token, TokenInfo},
    super::slate::{Call, Slate},
    super::trouble::Trouble,
    checked, is_leak,
};
use cryptoki_sys::{
    CK_BBOOL, CK_C_INITIALIZE_ARGS, CK_FUNCTION_LIST, CK_INFO, CK_MECHANISM_TYPE, CK_OBJECT_HANDLE, CK_RV,
    CK_SESSION_HANDLE, CK_SLOT_ID, CK_SLOT_INFO, CK_TOKEN_INFO, CK_TRUE, CKF_OS_LOCKING_OK, CKF_RW_SESSION,
    CKF_SERIAL_SESSION, CKF_TOKEN_PRESENT, CKR_BUFFER_TOO_SMALL, CKR_CRYPTOKI_ALREADY_INITIALIZED,
    CKR_SESSION_PARALLEL_NOT_SUPPORTED, CKR_SESSION_READ_ONLY, CKR_USER_ALREADY_LOGGED_IN, CKU_USER,
};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW, Symbol};
use std::{
    path::Path,
    ptr,
    time::{Instant, SystemTime},
};

/// Slots that a list may have before it is taken for nonsense.
const SLOTS_SANE: u64 = 4096;
/// Mechanisms that are named of a slot.
const MECHANISMS_MAX: u64 = 512;

/// The only function that a module must export.
type GetFunctionList = unsafe extern "C" fn(*mut *mut CK_FUNCTION_LIST) -> CK_RV;

/// A loaded module, and what this process holds of it.
pub(super) struct Module {
    functions: CK_FUNCTION_LIST,
    slate: Slate,
    calls: Vec<(Call, u64)>,
    slot: Option<CK_SLOT_ID>,
    /// The session that keeps the login.
    anchor: Option<CK_SESSION_HANDLE>,
    /// Sessions that are open, as far as we know.
    sessions: u32,
    leaked: Option<u64>,
    /// The token refuses read-only sessions.
    read_write: bool,
    /// Handles of keys, which are good as long as this process is.
    pub(super) keys: Vec<(String, super::super::trouble::KeyKind, CK_OBJECT_HANDLE)>,
}

/// Calls a function of the list, with the call noted before and its time after.
macro_rules! call {
    ($module:ident . $function:ident / $call:ident ( $($argument:expr),* $(,)? )) => {{
        let call = $crate::probe::pkcs11::slate::Call::$call;
        match $module.function(|list| list.$function) {
            None => Err($crate::probe::pkcs11::trouble::Trouble::Absent { call }),
            Some(function) => {
                let began = $module.begin(call);
                // SAFETY: the pointer comes from the module's own list; all arguments outlive the call, and lengths say
                // what the buffers behind them hold.
                let rv: cryptoki_sys::CK_RV = unsafe { function($($argument),*) };
                $module.finish(call, began);
                Ok(rv)
            }
        }
    }};
}
pub(super) use call;

impl Module {
    /// dlopen and C_GetFunctionList. The library is never closed: code of it may run until the process ends.
    pub(super) fn load(path: &Path, slate: Slate) -> Result<Self, Trouble> {
        let unloadable = |error: &dyn std::fmt::Display| Trouble::Unloadable { why: error.to_string() };
        let mut calls = Vec::with_capacity(16);
        slate.write(Some(Call::Dlopen), 0);
        let began = Instant::now();
        // SAFETY: initialisers of the library run, and may do anything: this process has no rights, and no state to lose.
        let library =
            unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.map_err(|error| unloadable(&error))?;
        calls.push((Call::Dlopen, nanos(began)));
        // SAFETY: PKCS#11 gives the function of this name this type.
        let found: Result<Symbol<GetFunctionList>, _> = unsafe { library.get(b"C_GetFunctionList\0") };
        let get = found.map_err(|error| unloadable(&error))?;
        let mut list: *mut CK_FUNCTION_LIST = ptr::null_mut();
        slate.write(Some(Call::GetFunctionList), 0);
        let began = Instant::now();
        // SAFETY: the argument points to room for the pointer that it asks for.
        let rv = unsafe { get(&raw mut list) };
        calls.push((Call::GetFunctionList, nanos(began)));
        slate.write(None, 0);
        std::mem::forget(library);
        checked(Call::GetFunctionList, rv)?;
        if list.is_null() {
            return Err(Trouble::Absent { call: Call::GetFunctionList });
        }
        // SAFETY: a module that returns CKR_OK points to its list, which lives as long as the library: for ever.
        let functions = unsafe { list.read() };
        Ok(Self {
            functions,
            slate,
            calls,
            slot: None,
            anchor: None,
            sessions: 0,
            leaked: None,
            read_write: false,
            keys: Vec::new(),
        })
    }

    /// The calls since the last time, for the answer.
    pub(super) fn take_calls(&mut self) -> Vec<(Call, u64)> {
        std::mem::take(&mut self.calls)
    }

    pub(super) fn function<F>(&self, of: impl FnOnce(&CK_FUNCTION_LIST) -> F) -> F {
        of(&self.functions)
    }

    pub(super) fn begin(&self, call: Call) -> Instant {
        // A session may exist from the moment on in which it is asked for.
        let opening = u32::from(call == Call::OpenSession);
        self.slate.write(Some(call), self.sessions + opening);
        Instant::now()
    }

    pub(super) fn finish(&mut self, call: Call, began: Instant) {
        self.calls.push((call, nanos(began)));
    }

    /// Between calls; the slate names none, and the sessions that are held.
    pub(super) fn rest(&self) {
        self.slate.write(None, self.sessions);
    }

    pub(super) fn initialize(&mut self) -> Result<(), Trouble> {
        let mut arguments = CK_C_INITIALIZE_ARGS {
            CreateMutex: None,
            DestroyMutex: None,
            LockMutex: None,
            UnlockMutex: None,
            flags: CKF_OS_LOCKING_OK,
            pReserved: ptr::null_mut(),
        };
        let rv = call!(self.C_Initialize / Initialize((&raw mut arguments).cast()))?;
        self.rest();
        match rv {
            CKR_CRYPTOKI_ALREADY_INITIALIZED => Ok(()),
            rv => checked(Call::Initialize, rv),
        }
    }

    /// What the library says of itself. Not essential, and wrong in some modules.
    pub(super) fn library(&mut self) -> Option<LibraryInfo> {
        let mut info = CK_INFO::default();
        let rv = call!(self.C_GetInfo / GetInfo(&raw mut info)).ok()?;
        self.rest();
        checked(Call::GetInfo, rv).ok()?;
        Some(LibraryInfo {
            manufacturer: text(&info.manufacturerID),
            description: text(&info.libraryDescription),
            version: (info.libraryVersion.major, info.libraryVersion.minor),
            cryptoki: (info.cryptokiVersion.major, info.cryptokiVersion.minor),
        })
    }

    /// Numbers of the slots, with or without tokens.
    fn slot_ids(&mut self, present: CK_BBOOL) -> Result<Vec<CK_SLOT_ID>, Trouble> {
        // A token can come between the two calls.
        for _again in 0..3 {
            let mut count = 0;
            checked(
                Call::GetSlotList,
                call!(self.C_GetSlotList / GetSlotList(present, ptr::null_mut(), &raw mut count))?,
            )?;
            if count > SLOTS_SANE {
                return Err(Trouble::Wrong(super::super::trouble::Wrong::Length));
            }
            let room = usize::try_from(count).unwrap_or_default();
            let mut ids = vec![0; room];
            match call!(self.C_GetSlotList / GetSlotList(present, ids.as_mut_ptr(), &raw mut count))? {
                CKR_BUFFER_TOO_SMALL => {}
                rv => {
                    checked(Call::GetSlotList, rv)?;
                    ids.truncate(usize::try_from(count).unwrap_or(room));
                    return Ok(ids);
                }
            }
        }
        Err(Trouble::Returned { call: Call::GetSlotList, rv: CKR_BUFFER_TOO_SMALL })
    }

    /// Everything about every slot, for people.
    pub(super) fn slots(&mut self) -> Result<Vec<SlotEntry>, Trouble> {
        let mut ids = self.slot_ids(0)?;
        ids.truncate(SLOTS_MAX);
        let mut entries = Vec::with_capacity(ids.len());
        for id in ids {
            let slot = self.slot_info(id);
            let present = slot.as_ref().is_ok_and(|slot| slot.flags & CKF_TOKEN_PRESENT != 0);
            let token = present.then(|| self.token_info(id));
            let mechanisms = if present { self.mechanisms(id).unwrap_or_default() } else { Vec::new() };
            entries.push(SlotEntry { id, slot, token, mechanisms });
        }
        self.rest();
        Ok(entries)
    }

    fn mechanisms(&mut self, id: CK_SLOT_ID) -> Result<Vec<CK_MECHANISM_TYPE>, Trouble> {
        let mut count = 0;
        let rv = call!(self.C_GetMechanismList / GetMechanismList(id, ptr::null_mut(), &raw mut count))?;
        checked(Call::GetMechanismList, rv)?;
        let mut list = vec![0; usize::try_from(count.min(MECHANISMS_MAX)).unwrap_or_default()];
        count = list.len() as u64;
        let rv = call!(self.C_GetMechanismList / GetMechanismList(id, list.as_mut_ptr(), &raw mut count))?;
        checked(Call::GetMechanismList, rv)?;
        list.truncate(usize::try_from(count).unwrap_or_default());
        Ok(list)
    }

    /// The slot of the token that is meant. Slots that give no information are passed over: one bad slot must not hide
    /// the good one behind it.
    pub(super) fn select(&mut self, token: &Token) -> Result<u64, Trouble> {
        self.slot = None;
        let mut found = Vec::new();
        for id in self.slot_ids(CK_TRUE)? {
            let Ok(info) = self.token_info(id) else { continue };
            if is_meant(&info, token) {
                found.push(id);
            }
        }
        self.rest();
        match found.as_slice() {
            [] => Err(Trouble::NoToken),
            &[slot] => {
                self.slot = Some(slot);
                Ok(slot)
            }
            many => Err(Trouble::TokenAmbiguous { count: u32::try_from(many.len()).unwrap_or(u32::MAX) }),
        }
    }

    pub(super) fn selected(&self) -> Result<CK_SLOT_ID, Trouble> {
        self.slot.ok_or(Trouble::OutOfOrder)
    }

    /// Slot and token as they are now.
    pub(super) fn info(&mut self) -> Result<Info, Trouble> {
        let id = self.selected()?;
        let slot = self.slot_info(id)?;
        let present = slot.flags & CKF_TOKEN_PRESENT != 0;
        let before_ns = wall_ns();
        let token = if present { Some(self.token_info(id)?) } else { None };
        let after_ns = wall_ns();
        self.rest();
        Ok(Info { slot, token, before_ns, after_ns })
    }

    fn slot_info(&mut self, id: CK_SLOT_ID) -> Result<SlotInfo, Trouble> {
        let mut info = CK_SLOT_INFO::default();
        checked(Call::GetSlotInfo, call!(self.C_GetSlotInfo / GetSlotInfo(id, &raw mut info))?)?;
        Ok(SlotInfo {
            description: text(&info.slotDescription),
            manufacturer: text(&info.manufacturerID),
            flags: info.flags,
            hardware: (info.hardwareVersion.major, info.hardwareVersion.minor),
            firmware: (info.firmwareVersion.major, info.firmwareVersion.minor),
        })
    }

    fn token_info(&mut self, id: CK_SLOT_ID) -> Result<TokenInfo, Trouble> {
        let mut info = CK_TOKEN_INFO::default();
        checked(Call::GetTokenInfo, call!(self.C_GetTokenInfo / GetTokenInfo(id, &raw mut info))?)?;
        Ok(TokenInfo {
            label: text(&info.label),
            manufacturer: text(&info.manufacturerID),
            model: text(&info.model),
            serial: text(&info.serialNumber),
            flags: info.flags,
            sessions: (info.ulMaxSessionCount, info.ulSessionCount),
            rw_sessions: (info.ulMaxRwSessionCount, info.ulRwSessionCount),
            pin_len: (info.ulMinPinLen, info.ulMaxPinLen),
            hardware: (info.hardwareVersion.major, info.hardwareVersion.minor),
            firmware: (info.firmwareVersion.major, info.firmwareVersion.minor),
            utc_time: info.utcTime,
        })
    }

    /// The session that will keep the login.
    pub(super) fn open_anchor(&mut self) -> Result<(), Trouble> {
        if self.anchor.is_none() {
            self.anchor = Some(self.open()?);
        }
        Ok(())
    }

    /// The login, in the session that keeps it: once in a process's life.
    pub(super) fn login(&mut self, pin: &[u8]) -> Result<(), Trouble> {
        let session = self.anchor.ok_or(Trouble::OutOfOrder)?;
        let length = pin.len() as u64;
        // The module gets the buffer that will be wiped; it promises not to write to it.
        let rv = call!(self.C_Login / Login(session, CKU_USER, pin.as_ptr().cast_mut(), length))?;
        self.rest();
        match rv {
            CKR_USER_ALREADY_LOGGED_IN => Ok(()),
            rv => checked(Call::Login, rv),
        }
    }

    /// A session: read-only, unless the token has refused that.
    pub(super) fn open(&mut self) -> Result<CK_SESSION_HANDLE, Trouble> {
        let slot = self.selected()?;
        loop {
            let flags = CKF_SERIAL_SESSION | if self.read_write { CKF_RW_SESSION } else { 0 };
            let mut session = 0;
            let rv = call!(self.C_OpenSession / OpenSession(slot, flags, ptr::null_mut(), None, &raw mut session))?;
            self.rest();
            match rv {
                // Some tokens know read-write sessions only.
                CKR_SESSION_READ_ONLY | CKR_SESSION_PARALLEL_NOT_SUPPORTED if !self.read_write => {
                    self.read_write = true;
                }
                rv => {
                    checked(Call::OpenSession, rv)?;
                    self.sessions += 1;
                    self.rest();
                    return Ok(session);
                }
            }
        }
    }

    /// Closes a session, and remembers if it could not.
    pub(super) fn close(&mut self, session: CK_SESSION_HANDLE) -> Result<(), Trouble> {
        let rv = call!(self.C_CloseSession / CloseSession(session))?;
        if is_leak(rv) {
            self.leaked = Some(rv);
        } else {
            self.sessions = self.sessions.saturating_sub(1);
        }
        self.rest();
        Ok(())
    }

    /// What C_CloseSession last returned for a session that may have stayed open.
    pub(super) fn take_leaked(&mut self) -> Option<u64> {
        self.leaked.take()
    }

    /// The session that keeps the login.
    pub(super) fn anchor(&self) -> Result<CK_SESSION_HANDLE, Trouble> {
        self.anchor.ok_or(Trouble::OutOfOrder)
    }

    /// Closes what is open and finalises: with that a module gives up all that it holds, also what it could not close.
    pub(super) fn end(&mut self) -> Result<(), Trouble> {
        let closed = self.anchor.take().map_or(Ok(()), |anchor| self.close(anchor));
        let rv = call!(self.C_Finalize / Finalize(ptr::null_mut()))?;
        if rv == cryptoki_sys::CKR_OK {
            self.sessions = 0;
        }
        self.rest();
        checked(Call::Finalize, rv)?;
        closed
    }
}

/// Fixed width and no terminator; padded with blanks, or by some with zeros.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().rposition(|byte| !matches!(byte, b' ' | 0)).map_or(0, |last| last + 1);
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// Whether a token is the one. An empty serial or label names nothing.
fn is_meant(info: &TokenInfo, token: &Token) -> bool {
    match token {
        Token::Serial(serial) => !serial.is_empty() && info.serial == *serial,
        Token::Label(label) => !label.is_empty() && info.label == *label,
    }
}

fn nanos(began: Instant) -> u64 {
    u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// The host's wall clock: the only place where it is needed, to compare a token's with.
fn wall_ns() -> i64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_nanos()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_ends_where_its_padding_begins() {
        let table: [(&[u8], &str); 5] = [
            (b"edge-sign       ", "edge-sign"),
            (b"edge-sign\0\0\0\0\0\0\0", "edge-sign"),
            (b"0123456789abcdef0123456789abcdef", "0123456789abcdef0123456789abcdef"),
            (b"    ", ""),
            (b"a b\0 ", "a b"),
        ];
        for (bytes, want) in table {
            assert_eq!(text(bytes), want);
        }
    }
}
