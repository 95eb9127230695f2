//! What daemon and worker say to each other.
//!
//! A frame is a length (u32, little endian, at most [`FRAME_MAX`]) and that many bytes of JSON. The daemon asks, the worker
//! answers, one question at a time; number and generation are echoed. Anything else is a breach, and ends the worker.
//!
//! Where the worker is, is no frame: it notes each vendor call, before it is made, on a *slate*, eight bytes of shared
//! memory (a memfd). The daemon reads them when a deadline has passed or the worker has died. A frame for each call would
//! wake the daemon ten times a round and cost more than the calls.

use super::{slate::Call, trouble::Trouble};
use serde::{Deserialize, Serialize};
use std::{
    io::{self, Read, Write},
    path::PathBuf,
};

/// Greatest frame, both ways. Above what a list of [`SLOTS_MAX`] slots takes.
pub(super) const FRAME_MAX: usize = 64 << 10;
/// Version of what follows. Daemon and worker are the same file, but for an upgrade under way.
pub(super) const PROTOCOL: u32 = 1;
/// Slots that a list has; modules with more are rare, and nobody reads a longer one.
pub(super) const SLOTS_MAX: usize = 64;
/// The worker's end of the conversation.
pub(super) const FD_SOCKET: i32 = 3;
/// Where the worker reads the PIN.
pub(super) const FD_PIN: i32 = 4;
/// Where the worker notes what it does.
pub(super) const FD_SLATE: i32 = 5;

/// What the daemon wants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Request {
    /// Give up all rights, and become this user. The first request, and the only one before which no limit holds.
    Confine(Confine),
    /// dlopen, C_GetFunctionList, C_Initialize.
    Load { module: PathBuf },
    /// All slots and tokens, as they are.
    Slots,
    /// Find the one token that is meant.
    Select(Token),
    /// C_GetSlotInfo, C_GetTokenInfo.
    Info,
    /// A session that will keep the login. Asked again, there still is one.
    Anchor,
    /// C_Login in that session, with what comes through the pipe. Once in a worker's life.
    Login,
    /// An operation, in a session of its own.
    Business(Business),
    /// Close sessions, C_Finalize, exit.
    Quit,
}

impl Request {
    /// The word for it as a step of a round.
    pub(super) const fn name(&self) -> &'static str {
        match self {
            Self::Confine(_) => "worker",
            Self::Load { .. } => "load",
            Self::Slots => "slots",
            Self::Select(_) => "select",
            Self::Info => "info",
            Self::Anchor => "session",
            Self::Login => "login",
            Self::Business(_) => "business",
            Self::Quit => "close",
        }
    }
}

/// What a worker may do at most.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Confine {
    /// User and group, where the daemon is root. Never 0.
    pub(super) user: Option<(u32, u32)>,
    /// Address space. Unit: bytes.
    pub(super) memory_max: u64,
    /// The daemon's process.
    pub(super) parent: i32,
}

/// Which token is meant. Never a slot number: those change with every initialisation.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Token {
    /// `CK_TOKEN_INFO.serialNumber`, without its padding.
    Serial(String),
    /// `CK_TOKEN_INFO.label`, without its padding.
    Label(String),
}

/// An operation and its challenge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Business {
    pub(super) operation: Operation,
    /// `CKA_LABEL` of the key.
    pub(super) key: String,
    /// Fresh in each round.
    pub(super) challenge: [u8; 32],
    /// Fresh too; initial vector of a cipher.
    pub(super) vector: [u8; 16],
    /// Whether C_Verify may be left out because the daemon verifies, should there be no public key on the token.
    pub(super) pinned: bool,
    /// In the session that keeps the login, not in one of its own.
    pub(super) in_anchor: bool,
}

/// What is done with the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// C_Sign, then C_Verify.
    SignVerify(Signing),
    /// C_Encrypt, then C_Decrypt.
    EncryptDecrypt(Cipher),
    /// C_GenerateRandom, twice.
    Random,
}

/// `mechanism` of a signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Signing {
    /// CKM_ECDSA over SHA-256: `ecdsa-sha256`.
    EcdsaSha256,
    /// CKM_ECDSA over SHA-384: `ecdsa-sha384`.
    EcdsaSha384,
    /// CKM_SHA256_RSA_PKCS: `rsa-pkcs-sha256`.
    RsaPkcsSha256,
}

/// `mechanism` of an encryption.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cipher {
    /// CKM_AES_CBC_PAD: `aes-cbc-pad`.
    AesCbcPad,
    /// CKM_AES_GCM: `aes-gcm`.
    AesGcm,
}

/// What the worker answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Reply {
    /// To [`Request::Confine`].
    Hello { protocol: u32, pid: u32, build: String },
    /// To [`Request::Load`]; without a library's own words where C_GetInfo fails.
    Loaded(Option<LibraryInfo>),
    /// To [`Request::Slots`].
    Slots(Vec<SlotEntry>),
    /// To [`Request::Select`].
    Selected { slot: u64 },
    /// To [`Request::Info`].
    Info(Box<Info>),
    /// To [`Request::Anchor`].
    Anchored,
    /// To [`Request::Login`].
    LoggedIn,
    /// To [`Request::Business`].
    Done(Done),
    /// To [`Request::Quit`].
    Bye,
}

/// What an operation gave.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Done {
    /// For the pinned public key.
    pub(super) signature: Vec<u8>,
    /// Whether the token itself verified it.
    pub(super) verified_by_token: bool,
}

/// `CK_INFO`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LibraryInfo {
    /// `manufacturerID`.
    pub manufacturer: String,
    /// `libraryDescription`.
    pub description: String,
    /// `libraryVersion`.
    pub version: (u8, u8),
    /// `cryptokiVersion`.
    pub cryptoki: (u8, u8),
}

/// One slot of a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotEntry {
    /// `CK_SLOT_ID`.
    pub id: u64,
    /// C_GetSlotInfo.
    pub slot: Result<SlotInfo, Trouble>,
    /// C_GetTokenInfo; `None` if no token is present.
    pub token: Option<Result<TokenInfo, Trouble>>,
    /// What C_GetMechanismList names.
    pub mechanisms: Vec<u64>,
}

/// Slot and token, with the host's clock before and after.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Info {
    /// C_GetSlotInfo.
    pub(super) slot: SlotInfo,
    /// C_GetTokenInfo; `None` if the slot says that no token is present.
    pub(super) token: Option<TokenInfo>,
    /// CLOCK_REALTIME before C_GetTokenInfo. Unit: ns since 1970.
    pub(super) before_ns: i64,
    /// The same after it.
    pub(super) after_ns: i64,
}

/// `CK_SLOT_INFO`, without padding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotInfo {
    /// `slotDescription`.
    pub description: String,
    /// `manufacturerID`.
    pub manufacturer: String,
    /// Raw.
    pub flags: u64,
    /// `hardwareVersion`.
    pub hardware: (u8, u8),
    /// `firmwareVersion`.
    pub firmware: (u8, u8),
}

/// `CK_TOKEN_INFO`, without padding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenInfo {
    /// At most 32 bytes.
    pub label: String,
    /// `manufacturerID`.
    pub manufacturer: String,
    /// At most 16 bytes.
    pub model: String,
    /// At most 16 bytes.
    pub serial: String,
    /// Raw.
    pub flags: u64,
    /// `ulMaxSessionCount`, `ulSessionCount`; `u64::MAX` is "unavailable".
    pub sessions: (u64, u64),
    /// `ulMaxRwSessionCount`, `ulRwSessionCount`.
    pub rw_sessions: (u64, u64),
    /// `ulMinPinLen`, `ulMaxPinLen`.
    pub pin_len: (u64, u64),
    /// `hardwareVersion`.
    pub hardware: (u8, u8),
    /// `firmwareVersion`.
    pub firmware: (u8, u8),
    /// As the token wrote it: meaningful only with `CKF_CLOCK_ON_TOKEN`, and not always then.
    pub utc_time: [u8; 16],
}

/// A request with its number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Asked {
    pub(super) id: u64,
    pub(super) generation: u64,
    pub(super) request: Request,
}

/// An answer with its question's number, and what the vendor calls took.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Answered {
    pub(super) id: u64,
    pub(super) generation: u64,
    pub(super) answer: Result<Reply, Trouble>,
    /// Each call and its time in ns, in order.
    pub(super) calls: Vec<(Call, u64)>,
    /// What C_CloseSession returned, if a session may have stayed open.
    pub(super) leaked: Option<u64>,
}

/// Makes a frame.
pub(super) fn encode<T: Serialize>(message: &T) -> io::Result<Vec<u8>> {
    let mut frame = vec![0; 4];
    serde_json::to_writer(&mut frame, message)?;
    let length = frame.len() - 4;
    if length > FRAME_MAX {
        return Err(io::Error::other("a frame would be too long"));
    }
    let length = u32::try_from(length).map_err(io::Error::other)?;
    frame[..4].copy_from_slice(&length.to_le_bytes());
    Ok(frame)
}

/// The worker's way of reading a frame: it blocks.
pub(super) fn read_frame(from: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let length = frame_length(length).ok_or_else(|| io::Error::other("a frame is too long"))?;
    let mut frame = vec![0; length];
    from.read_exact(&mut frame)?;
    Ok(frame)
}

/// The worker's way of writing one.
pub(super) fn write_frame<T: Serialize>(to: &mut impl Write, message: &T) -> io::Result<()> {
    to.write_all(&encode(message)?)
}

/// The length that four bytes announce; `None` if no honest frame has it. Nothing is allocated before this is known.
pub(super) fn frame_length(bytes: [u8; 4]) -> Option<usize> {
    usize::try_from(u32::from_le_bytes(bytes)).ok().filter(|&length| length <= FRAME_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_reads_back() {
        let asked = Asked { id: 7, generation: 2, request: Request::Select(Token::Serial("0A1B".to_owned())) };
        let frame = encode(&asked).expect("it is short");
        let read = read_frame(&mut frame.as_slice()).expect("it is whole");
        assert_eq!(serde_json::from_slice::<Asked>(&read).expect("it is ours"), asked);
    }

    #[test]
    fn a_frame_that_is_too_long_is_refused_unread() {
        assert_eq!(frame_length((1_u32 << 30).to_le_bytes()), None);
        assert_eq!(frame_length(0x1_0001_u32.to_le_bytes()), None);
        assert_eq!(frame_length(0x1_0000_u32.to_le_bytes()), Some(FRAME_MAX));
        assert!(read_frame(&mut [0xff; 8].as_slice()).is_err());
        assert!(read_frame(&mut [9, 0, 0, 0, 1].as_slice()).is_err(), "half a frame");
    }
}
