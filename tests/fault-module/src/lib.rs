//! A PKCS#11 module that fails as a test tells it to. Never part of the product.
//!
//! It exports `C_GetFunctionList` alone, as many vendors' modules do. Calls go on to a real module (SoftHSM, or p11-kit's
//! client) or to a small one of its own; rules in a file make them fail, hang, lie, crash or answer something else, from
//! one call to the next, without reloading. `FAULT_MODULE_DIR` names the directory of that file; `rules` tells what may
//! stand in it, `place` what the module writes beside it.
//!
//! No randomness: where a fault strikes some of the calls, the same calls are struck in each run.

mod act;
mod calls;
mod changed;
mod own;
mod place;
mod rules;
mod token;

use std::sync::OnceLock;

use cryptoki_sys::{CK_FUNCTION_LIST, CK_RV, CKR_ARGUMENTS_BAD, CKR_GENERAL_ERROR, CKR_OK};

/// Gives the module's functions (PKCS#11 v2.40, 5.4).
///
/// # Safety
///
/// `place` is null or a place for a pointer, as the standard asks of the caller.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn C_GetFunctionList(place: *mut *mut CK_FUNCTION_LIST) -> CK_RV {
    static LIST: OnceLock<CK_FUNCTION_LIST> = OnceLock::new();
    if place.is_null() {
        return CKR_ARGUMENTS_BAD;
    }
    if !place::is_set() {
        eprintln!("fault-module: {} names no directory", place::VARIABLE);
        return CKR_GENERAL_ERROR;
    }
    let twist = act::suffer("C_GetFunctionList");
    if let Some(answer) = twist.answer {
        return answer;
    }
    let list = std::ptr::from_ref(LIST.get_or_init(calls::list)).cast_mut();
    // SAFETY: not null, and the caller's place for a pointer. Callers only read what it names (5.4).
    unsafe { place.write(list) };
    CKR_OK
}

/// What `dlopen` runs, before it returns: some vendors' modules talk to their device there.
extern "C" fn loaded() {
    if place::is_set() {
        act::suffer("load");
    }
}

/// The dynamic linker runs what is listed in this section (System V ABI, "Initialization and Termination Functions").
#[used]
// SAFETY: the section holds pointers to functions that the linker calls; ours ignores the arguments that it gets.
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn() = loaded;
