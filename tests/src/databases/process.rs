//! A child process that is gone when we are, however we end.
//!
//! A small shell stands between: it reads from a pipe whose other end only this process holds, and
//! cleans up when that end closes, be it by `Drop`, by a panic without unwinding or by a kill.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

/// Runs `clean_up` when dropped, or when this process ends in any other way.
#[derive(Debug)]
pub(crate) struct Guarded {
    shell: Child,
}

impl Guarded {
    /// Starts a shell with `before`, which may leave `$pid` behind for `clean_up`. Arguments are
    /// `$1`, `$2`… in both. `user` is the user and group to run as.
    pub(crate) fn start<I>(
        before: &str,
        clean_up: &str,
        arguments: I,
        user: Option<(u32, u32)>,
        output: Stdio,
    ) -> io::Result<Self>
    where
        I: IntoIterator<Item: AsRef<std::ffi::OsStr>>,
    {
        let mut command = Command::new("sh");
        command
            .arg("-c")
            .arg(format!("{before}\nread -r _ || true\n{clean_up}"))
            .arg("guard")
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(output)
            // Not in our group: an interrupt from the terminal must not end the guard first.
            .process_group(0);
        if let Some((user, group)) = user {
            command.uid(user).gid(group).current_dir("/");
        }
        let shell = command.spawn()?;
        Ok(Self { shell })
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        // Nothing can be done about an error here, and the shell cleans up all the same.
        let _ = self.shell.wait();
    }
}
