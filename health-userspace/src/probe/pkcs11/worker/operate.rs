//! An operation with a key: fresh challenge, verified by the token. A session of its own, closed whatever happens.

use super::{
    super::protocol::{Business, Cipher, Done, Operation, Signing},
    super::slate::Call,
    super::trouble::{KeyKind, Trouble, Wrong},
    checked,
    raw::{Module, call},
};
use cryptoki_sys::{
    CK_ATTRIBUTE, CK_GCM_PARAMS, CK_MECHANISM, CK_OBJECT_HANDLE, CK_SESSION_HANDLE, CKA_CLASS, CKA_LABEL,
    CKM_AES_CBC_PAD, CKM_AES_GCM, CKM_ECDSA, CKM_SHA256_RSA_PKCS, CKO_PRIVATE_KEY, CKO_PUBLIC_KEY, CKO_SECRET_KEY,
};
use ring::digest;
use std::ptr;

/// Room for any signature, ciphertext or plain text of ours; an RSA key of 65,536 bits fits.
const ROOM: usize = 8192;
/// Bits of a GCM tag.
const TAG_BITS: u64 = 128;

/// Opens a session, does it, closes the session.
pub(super) fn run(module: &mut Module, business: &Business) -> Result<Done, Trouble> {
    if business.in_anchor {
        let session = module.anchor()?;
        return operate(module, session, business);
    }
    let session = module.open()?;
    let done = operate(module, session, business);
    // What went wrong first is what counts. A session that stays open is reported beside it.
    let closed = module.close(session);
    let done = done?;
    closed.map(|()| done)
}

fn operate(module: &mut Module, session: CK_SESSION_HANDLE, business: &Business) -> Result<Done, Trouble> {
    match business.operation {
        Operation::SignVerify(signing) => sign_verify(module, session, business, signing),
        Operation::EncryptDecrypt(cipher) => encrypt_decrypt(module, session, business, cipher),
        Operation::Random => random(module, session),
    }
}

fn sign_verify(
    module: &mut Module,
    session: CK_SESSION_HANDLE,
    business: &Business,
    signing: Signing,
) -> Result<Done, Trouble> {
    let private = find(module, session, &business.key, KeyKind::Private)?;
    let public = match find(module, session, &business.key, KeyKind::Public) {
        Ok(public) => Some(public),
        Err(Trouble::NoKey { .. }) if business.pinned => None,
        Err(error) => return Err(error),
    };
    let (kind, mut data) = match signing {
        Signing::EcdsaSha256 => (CKM_ECDSA, digest::digest(&digest::SHA256, &business.challenge).as_ref().to_vec()),
        Signing::EcdsaSha384 => (CKM_ECDSA, digest::digest(&digest::SHA384, &business.challenge).as_ref().to_vec()),
        Signing::RsaPkcsSha256 => (CKM_SHA256_RSA_PKCS, business.challenge.to_vec()),
    };
    let mut mechanism = plain(kind);
    let length = data.len() as u64;
    let rv = call!(module.C_SignInit / SignInit(session, &raw mut mechanism, private))?;
    checked(Call::SignInit, rv)?;
    let mut out = Output::new();
    let rv = call!(module.C_Sign / Sign(session, data.as_mut_ptr(), length, out.pointer(), &raw mut out.length))?;
    checked(Call::Sign, rv)?;
    let mut signature = out.taken()?;
    if let Some(public) = public {
        let rv = call!(module.C_VerifyInit / VerifyInit(session, &raw mut mechanism, public))?;
        checked(Call::VerifyInit, rv)?;
        let signature_length = signature.len() as u64;
        let pointer = signature.as_mut_ptr();
        let rv = call!(module.C_Verify / Verify(session, data.as_mut_ptr(), length, pointer, signature_length))?;
        checked(Call::Verify, rv)?;
    }
    Ok(Done { signature, verified_by_token: public.is_some() })
}

fn encrypt_decrypt(
    module: &mut Module,
    session: CK_SESSION_HANDLE,
    business: &Business,
    cipher: Cipher,
) -> Result<Done, Trouble> {
    let key = find(module, session, &business.key, KeyKind::Secret)?;
    let mut vector = business.vector;
    let mut gcm = CK_GCM_PARAMS {
        pIv: vector.as_mut_ptr(),
        ulIvLen: 12,
        ulIvBits: 96,
        pAAD: ptr::null_mut(),
        ulAADLen: 0,
        ulTagBits: TAG_BITS,
    };
    let mut mechanism = match cipher {
        Cipher::AesCbcPad => CK_MECHANISM {
            mechanism: CKM_AES_CBC_PAD,
            pParameter: vector.as_mut_ptr().cast(),
            ulParameterLen: vector.len() as u64,
        },
        Cipher::AesGcm => CK_MECHANISM {
            mechanism: CKM_AES_GCM,
            pParameter: (&raw mut gcm).cast(),
            ulParameterLen: size_of::<CK_GCM_PARAMS>() as u64,
        },
    };
    let mut data = business.challenge;
    let length = data.len() as u64;
    checked(Call::EncryptInit, call!(module.C_EncryptInit / EncryptInit(session, &raw mut mechanism, key))?)?;
    let mut out = Output::new();
    let rv = call!(module.C_Encrypt / Encrypt(session, data.as_mut_ptr(), length, out.pointer(), &raw mut out.length))?;
    checked(Call::Encrypt, rv)?;
    let mut secret = out.taken()?;
    if secret.windows(data.len()).any(|window| window == data) {
        return Err(Trouble::Wrong(Wrong::Plain));
    }
    checked(Call::DecryptInit, call!(module.C_DecryptInit / DecryptInit(session, &raw mut mechanism, key))?)?;
    let mut out = Output::new();
    let (pointer, length) = (secret.as_mut_ptr(), secret.len() as u64);
    let rv = call!(module.C_Decrypt / Decrypt(session, pointer, length, out.pointer(), &raw mut out.length))?;
    checked(Call::Decrypt, rv)?;
    if out.taken()? != data {
        return Err(Trouble::Wrong(Wrong::Decrypted));
    }
    Ok(Done { signature: Vec::new(), verified_by_token: true })
}

fn random(module: &mut Module, session: CK_SESSION_HANDLE) -> Result<Done, Trouble> {
    let mut numbers = [[0_u8; 32]; 2];
    for number in &mut numbers {
        let length = number.len() as u64;
        let rv = call!(module.C_GenerateRandom / GenerateRandom(session, number.as_mut_ptr(), length))?;
        checked(Call::GenerateRandom, rv)?;
    }
    let [one, other] = numbers;
    // Chance gives a number of one repeated byte once in 2^248.
    let dull = |number: [u8; 32]| number.iter().all(|&byte| byte == number[0]);
    if one == other || dull(one) || dull(other) {
        return Err(Trouble::Wrong(Wrong::Random));
    }
    Ok(Done::default())
}

/// The one key object of a class and label.
fn find(
    module: &mut Module,
    session: CK_SESSION_HANDLE,
    label: &str,
    kind: KeyKind,
) -> Result<CK_OBJECT_HANDLE, Trouble> {
    if let Some((_, _, handle)) = module.keys.iter().find(|(known, of, _)| known == label && *of == kind) {
        return Ok(*handle);
    }
    let mut class = match kind {
        KeyKind::Private => CKO_PRIVATE_KEY,
        KeyKind::Public => CKO_PUBLIC_KEY,
        KeyKind::Secret => CKO_SECRET_KEY,
    };
    let mut text = label.as_bytes().to_vec();
    let mut template = [
        CK_ATTRIBUTE { type_: CKA_CLASS, pValue: (&raw mut class).cast(), ulValueLen: size_of_val(&class) as u64 },
        CK_ATTRIBUTE { type_: CKA_LABEL, pValue: text.as_mut_ptr().cast(), ulValueLen: text.len() as u64 },
    ];
    let length = template.len() as u64;
    let rv = call!(module.C_FindObjectsInit / FindObjectsInit(session, template.as_mut_ptr(), length))?;
    checked(Call::FindObjectsInit, rv)?;
    let mut found: [CK_OBJECT_HANDLE; 8] = [0; 8];
    let mut count = 0;
    let room = found.len() as u64;
    let rv = call!(module.C_FindObjects / FindObjects(session, found.as_mut_ptr(), room, &raw mut count))?;
    checked(Call::FindObjects, rv)?;
    checked(Call::FindObjectsFinal, call!(module.C_FindObjectsFinal / FindObjectsFinal(session))?)?;
    match count {
        0 => Err(Trouble::NoKey { kind }),
        1 => {
            module.keys.push((label.to_owned(), kind, found[0]));
            Ok(found[0])
        }
        many => Err(Trouble::KeyAmbiguous { kind, count: u32::try_from(many).unwrap_or(u32::MAX) }),
    }
}

const fn plain(mechanism: u64) -> CK_MECHANISM {
    CK_MECHANISM { mechanism, pParameter: ptr::null_mut(), ulParameterLen: 0 }
}

/// A buffer for what a module writes. It is large enough for all that we ask for, so no length is asked first.
struct Output {
    bytes: Vec<u8>,
    length: u64,
}

impl Output {
    fn new() -> Self {
        Self { bytes: vec![0; ROOM], length: ROOM as u64 }
    }

    fn pointer(&mut self) -> *mut u8 {
        self.bytes.as_mut_ptr()
    }

    fn taken(mut self) -> Result<Vec<u8>, Trouble> {
        if self.length > ROOM as u64 {
            // Either it lies, or it has written that far: nothing in this process is to be trusted any more.
            super::exit(super::STATUS_OVERRUN)
        }
        if self.length == 0 {
            return Err(Trouble::Wrong(Wrong::Length));
        }
        self.bytes.truncate(usize::try_from(self.length).unwrap_or(ROOM));
        Ok(self.bytes)
    }
}
