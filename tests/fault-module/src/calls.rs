//! The functions that stand in front of the real ones.
//!
//! Every call that a health check makes goes through [`around`], which lets the rules strike and writes the log; then it
//! goes on to the module behind. What a rule changes in an answer is changed here.

use std::ffi::{CString, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::OnceLock;

use cryptoki_sys::{
    CK_ATTRIBUTE, CK_FUNCTION_LIST, CK_INFO, CK_MECHANISM, CK_MECHANISM_INFO, CK_MECHANISM_TYPE, CK_OBJECT_HANDLE,
    CK_RV, CK_SESSION_HANDLE, CK_SESSION_INFO, CK_SLOT_ID, CK_SLOT_INFO, CK_ULONG, CKR_OK,
};

use crate::act::around;
use crate::{changed, own, place};

/// The module behind, which is this module's own where no other is named.
pub(crate) fn behind() -> &'static CK_FUNCTION_LIST {
    static LIST: OnceLock<CK_FUNCTION_LIST> = OnceLock::new();
    LIST.get_or_init(|| match place::rules().forward {
        None => own::list(),
        Some(path) => load(&path).unwrap_or_else(|| {
            eprintln!("fault-module: {} is no PKCS#11 module", path.display());
            std::process::abort()
        }),
    })
}

/// Loads the module at `path` for good.
fn load(path: &Path) -> Option<CK_FUNCTION_LIST> {
    let path = CString::new(path.as_os_str().as_bytes()).ok()?;
    // SAFETY: the path is a C string; a module's constructors run as they would in any program that loads it.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if library.is_null() {
        return None;
    }
    // SAFETY: the handle is that of an open library, and the name is a C string.
    let symbol = unsafe { libc::dlsym(library, c"C_GetFunctionList".as_ptr()) };
    if symbol.is_null() {
        return None;
    }
    // SAFETY: PKCS#11 (v2.40, 5.4) gives the function of this name this type.
    let get = unsafe {
        std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut *mut CK_FUNCTION_LIST) -> CK_RV>(symbol)
    };
    let mut list = std::ptr::null_mut();
    // SAFETY: the place for the pointer is ours.
    if unsafe { get(&raw mut list) } != CKR_OK {
        return None;
    }
    // SAFETY: after CKR_OK the pointer names the module's list, which lives as long as the library, that is, for good.
    unsafe { list.as_ref() }.copied()
}

/// The list that callers get: the module behind, with our functions in front of it.
pub(crate) fn list() -> CK_FUNCTION_LIST {
    let mut list = *behind();
    plain::overlay(&mut list);
    changed::overlay(&mut list);
    list
}

/// Calls a function of the module behind.
macro_rules! pass {
    ($name:ident($($argument:expr),*)) => {
        match $crate::calls::behind().$name {
            // SAFETY: the arguments are the caller's own, passed on to a function of the same contract.
            Some(real) => unsafe { real($($argument),*) },
            None => cryptoki_sys::CKR_FUNCTION_NOT_SUPPORTED,
        }
    };
}

pub(crate) use pass;

/// Functions whose answers are passed on as they are.
macro_rules! plain {
    ($($name:ident($($argument:ident: $kind:ty),*);)*) => {
        #[expect(non_snake_case, reason = "PKCS#11 names them")]
        mod plain {
            use super::*;

            $(unsafe extern "C" fn $name($($argument: $kind),*) -> CK_RV {
                around(stringify!($name), |_| pass!($name($($argument),*)))
            })*

            pub(super) fn overlay(list: &mut CK_FUNCTION_LIST) {
                $(list.$name = Some($name);)*
            }
        }
    };
}

plain! {
    C_Initialize(arguments: *mut c_void);
    C_GetInfo(info: *mut CK_INFO);
    C_GetSlotInfo(slot: CK_SLOT_ID, info: *mut CK_SLOT_INFO);
    C_GetMechanismList(slot: CK_SLOT_ID, list: *mut CK_MECHANISM_TYPE, count: *mut CK_ULONG);
    C_GetMechanismInfo(slot: CK_SLOT_ID, mechanism: CK_MECHANISM_TYPE, info: *mut CK_MECHANISM_INFO);
    C_GetSessionInfo(session: CK_SESSION_HANDLE, info: *mut CK_SESSION_INFO);
    C_Logout(session: CK_SESSION_HANDLE);
    C_GetAttributeValue(session: CK_SESSION_HANDLE, key: CK_OBJECT_HANDLE, wanted: *mut CK_ATTRIBUTE, count: CK_ULONG);
    C_FindObjectsInit(session: CK_SESSION_HANDLE, wanted: *mut CK_ATTRIBUTE, count: CK_ULONG);
    C_FindObjects(session: CK_SESSION_HANDLE, found: *mut CK_OBJECT_HANDLE, max: CK_ULONG, count: *mut CK_ULONG);
    C_FindObjectsFinal(session: CK_SESSION_HANDLE);
    C_SignInit(session: CK_SESSION_HANDLE, mechanism: *mut CK_MECHANISM, key: CK_OBJECT_HANDLE);
    C_VerifyInit(session: CK_SESSION_HANDLE, mechanism: *mut CK_MECHANISM, key: CK_OBJECT_HANDLE);
    C_EncryptInit(session: CK_SESSION_HANDLE, mechanism: *mut CK_MECHANISM, key: CK_OBJECT_HANDLE);
    C_DecryptInit(session: CK_SESSION_HANDLE, mechanism: *mut CK_MECHANISM, key: CK_OBJECT_HANDLE);
}
