//! Runs a command with the URLs of running database servers in its environment:
//! `with-databases [--all] COMMAND [ARGUMENT]…`. Servers are found or started as for the tests, and
//! those that were started are stopped when the command ends. It is one server of each kind, and
//! with `--all` one of each release that claims are made about, see `Release::ALL`.

use std::process::{Command, ExitCode};

use highwater_tests::databases::{Kind, Release, Server};

#[tokio::main]
async fn main() -> ExitCode {
    let mut words = std::env::args_os().skip(1).peekable();
    let releases = match words.next_if(|word| word == "--all") {
        Some(_) => Release::ALL.to_vec(),
        None => [Kind::Postgres, Kind::MySql, Kind::MariaDb]
            .map(Release::from)
            .to_vec(),
    };
    let Some(program) = words.next() else {
        eprintln!("usage: with-databases [--all] COMMAND [ARGUMENT]…");
        return ExitCode::from(2);
    };
    let mut command = Command::new(program);
    command.args(words);
    let mut servers = Vec::new();
    for release in releases {
        if let Some(reason) = release.skip_reason() {
            eprintln!("{}: SKIPPED: {reason}", release.name());
            continue;
        }
        match Server::obtain(release).await {
            Ok(server) => {
                let name = format!("highwater_{}", std::process::id());
                match release.kind().create_database(server.url(), &name).await {
                    Ok(url) => command.env(release.variable("URL"), url),
                    Err(error) => {
                        eprintln!("{name}: {error}");
                        return ExitCode::FAILURE;
                    }
                };
                servers.push((server, name));
            }
            Err(error) => {
                eprintln!("{error}");
                return ExitCode::FAILURE;
            }
        }
    }
    // The runtime has nothing else to do meanwhile.
    let status = command.status();
    for (server, name) in servers {
        // Most servers end here anyway.
        let _ = server.kind().drop_database(server.url(), &name).await;
    }
    match status {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{}: {error}", command.get_program().display());
            ExitCode::FAILURE
        }
    }
}
