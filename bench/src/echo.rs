//! The yardstick: answers every frame at once, with a reply as long as the lock server's.
//!
//! It looks at a frame's opcode, length and id and at nothing else. There is no lock, no queue and no
//! lease behind it: it shows what the client, the runtime and the system's sockets cost by themselves.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use highwater_protocol::handshake::{ACCEPTED, ANSWER_BYTES, Challenge, Node, Nonce};
use highwater_protocol::{Extensions, MAX_REQUEST_BYTES};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// Serves connections until the listener fails.
///
/// # Errors
/// The listener's, for ever: one that cannot accept is of no more use to a measurement.
pub async fn serve(listener: TcpListener) -> io::Result<()> {
    let tokens = Arc::new(AtomicU64::new(1));
    loop {
        let (stream, _) = listener.accept().await?;
        let tokens = Arc::clone(&tokens);
        // A client that goes away is the end of its connection and of nothing else.
        tokio::spawn(async move { connection(stream, &tokens).await.ok() });
    }
}

async fn connection(mut stream: TcpStream, tokens: &AtomicU64) -> io::Result<()> {
    stream.set_nodelay(true)?;
    // Nothing is protected here, so nobody is asked who he is.
    let challenge = Challenge::new(Node::Single, Nonce::from([0; 16]));
    stream.write_all(&challenge.hello()).await?;
    stream.read_exact(&mut [0; ANSWER_BYTES]).await?;
    stream.write_all(&[ACCEPTED]).await?;

    let mut input = Vec::with_capacity(INPUT_BYTES);
    let mut output = Vec::with_capacity(INPUT_BYTES);
    loop {
        if stream.read_buf(&mut input).await? == 0 {
            return Ok(());
        }
        let mut rest = &input[..];
        while let Some((frame, left)) = next(rest) {
            answer(frame, tokens, &mut output)?;
            rest = left;
        }
        let done = input.len() - rest.len();
        input.drain(..done);
        if input.len() > MAX_REQUEST_BYTES {
            return Err(io::ErrorKind::InvalidData.into());
        }
        stream.write_all(&output).await?;
        output.clear();
    }
}

/// The first frame, if it is whole, and what follows.
fn next(input: &[u8]) -> Option<(&[u8], &[u8])> {
    let length = u16::from_be_bytes([*input.get(1)?, *input.get(2)?]);
    input.split_at_checked(HEADER_BYTES + usize::from(length))
}

/// The reply that a lock server gives if everything is free.
fn answer(frame: &[u8], tokens: &AtomicU64, output: &mut Vec<u8>) -> io::Result<()> {
    let id = frame.get(HEADER_BYTES..HEADER_BYTES + 8);
    let id = id.ok_or(io::ErrorKind::InvalidData)?;
    let token = || tokens.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    let mut reply = |opcode, parts: &[&[u8]]| {
        let length = parts.iter().map(|part| part.len()).sum::<usize>();
        let length = u16::try_from(length).map_err(|_| io::ErrorKind::InvalidData)?;
        output.push(opcode);
        output.extend_from_slice(&length.to_be_bytes());
        output.extend(parts.iter().copied().flatten());
        Ok(())
    };
    match frame[0] {
        opcode @ (b'A' | b'S') => reply(opcode, &[id, &token()]),
        opcode @ (b'R' | b'G' | b'h') => reply(opcode, &[id]),
        opcode @ b'a' => reply(opcode, &[id, &token(), &[0; 4]]),
        b'd' => {
            let extensions = Extensions::ALL.bits().to_be_bytes();
            reply(b'd', &[id, &[1; 32], &extensions])
        }
        // Nobody waits, so there is nothing to extend or to give up.
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

const HEADER_BYTES: usize = 3;
const INPUT_BYTES: usize = 16 * 1024;
