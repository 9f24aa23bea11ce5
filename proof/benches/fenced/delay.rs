//! A proxy that makes a server as far away as one likes: every answer is held back.
//!
//! Threads, not tasks: their sleep is exact to some ten microseconds, and the runtime that is
//! measured has nothing to do with it.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use highwater_proof::relay::ServerUrl;

/// Starts one for the server of this URL, for the life of the process; gives the URL through it.
pub(super) fn proxy(url: &str, delay: Duration) -> io::Result<String> {
    let url = ServerUrl::new(url);
    let target = url.server().to_owned();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            // A connection that cannot be served is closed, and the driver says so.
            let _ = serve(client, &target, delay);
        }
    });
    Ok(url.at(address))
}

fn serve(client: TcpStream, target: &str, delay: Duration) -> io::Result<()> {
    let server = TcpStream::connect(target)?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (mut requests, mut to_server) = (client.try_clone()?, server.try_clone()?);
    thread::spawn(move || {
        let _ = io::copy(&mut requests, &mut to_server);
        let _ = to_server.shutdown(Shutdown::Write);
    });
    let (sender, answers) = mpsc::channel::<(Instant, Vec<u8>)>();
    let (mut from_server, mut to_client) = (server, client);
    thread::spawn(move || {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(length @ 1..) = from_server.read(&mut buffer) {
            let due = Instant::now() + delay;
            if sender.send((due, buffer[..length].to_vec())).is_err() {
                return;
            }
        }
    });
    thread::spawn(move || {
        for (due, bytes) in answers {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            if to_client.write_all(&bytes).is_err() {
                return;
            }
        }
        let _ = to_client.shutdown(Shutdown::Write);
    });
    Ok(())
}
