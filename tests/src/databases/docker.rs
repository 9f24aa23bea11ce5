//! Starts database servers as containers of a Docker engine.
//!
//! The data lives in memory and the port is published on the loopback interface only. A guard
//! removes the container even when this process is killed.

use std::collections::HashMap;
use std::process::Stdio;
use std::time::Duration;

use testcontainers::bollard::models::PortBinding;
use testcontainers::core::client::docker_client_instance;
use testcontainers::core::{IntoContainerPort as _, Mount};
use testcontainers::runners::AsyncRunner as _;
use testcontainers::{ContainerAsync, GenericImage, ImageExt as _};

use super::process::Guarded;
use super::{Kind, PASSWORD, Release, first_answer};

/// A running container. Dropping it removes the container.
#[derive(Debug)]
pub(crate) struct Container {
    port: u16,
    // Removes the container before `testcontainers` would, which needs a runtime for it.
    _guard: Guarded,
    _container: ContainerAsync<GenericImage>,
}

impl Container {
    /// Starts the image and waits for the server's first answer; gives its version too.
    pub(crate) async fn start(release: Release, image: &str) -> Result<(Self, String), String> {
        let kind = release.kind();
        let engine = docker_client_instance().await.map_err(text)?;
        let ping = tokio::time::timeout(Duration::from_secs(5), engine.ping()).await;
        match ping {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => return Err(format!("no Docker engine answers: {error}")),
            Err(_) => return Err("the Docker engine does not answer".to_owned()),
        }
        let (name, tag) = image.rsplit_once(':').unwrap_or((image, "latest"));
        let container = request(kind, name, tag).start().await.map_err(chain)?;
        let port = container
            .get_host_port_ipv4(port_in_image(kind))
            .await
            .map_err(chain)?;
        let guard = Guarded::start(
            "",
            r#"docker rm --force --volumes "$1" >/dev/null"#,
            [container.id()],
            None,
            Stdio::null(),
        );
        let guard = guard.map_err(text)?;
        let answer = first_answer(release, &kind.url(port), || Ok(())).await;
        let version = match answer {
            Ok(version) => version,
            Err(error) => return Err(format!("{error}\n{}", last_lines(&container).await)),
        };
        let container = Self {
            port,
            _guard: guard,
            _container: container,
        };
        Ok((container, version))
    }

    /// The port on the loopback interface.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }
}

fn request(kind: Kind, name: &str, tag: &str) -> testcontainers::ContainerRequest<GenericImage> {
    let port = port_in_image(kind);
    let image = GenericImage::new(name, tag).with_exposed_port(port.tcp());
    let (variable, data, arguments): (_, _, &[&str]) = match kind {
        Kind::Postgres => (
            "POSTGRES_PASSWORD",
            "/var/lib/postgresql/data",
            &["-c", "fsync=off", "-c", "max_connections=200"],
        ),
        Kind::MySql => (
            "MYSQL_ROOT_PASSWORD",
            "/var/lib/mysql",
            &["--max-connections=400"],
        ),
        Kind::MariaDb => (
            "MARIADB_ROOT_PASSWORD",
            "/var/lib/mysql",
            &["--max-connections=400"],
        ),
    };
    image
        .with_env_var(variable, PASSWORD)
        .with_cmd(arguments.iter().copied())
        .with_mount(Mount::tmpfs_mount(data))
        .with_host_config_modifier(move |config| {
            let loopback = PortBinding {
                host_ip: Some("127.0.0.1".to_owned()),
                host_port: None,
            };
            let bindings = HashMap::from([(format!("{port}/tcp"), Some(vec![loopback]))]);
            config.publish_all_ports = Some(false);
            config.port_bindings = Some(bindings);
        })
}

/// The end of what the container wrote, for the message about a server that did not start.
async fn last_lines(container: &ContainerAsync<GenericImage>) -> String {
    let mut bytes = container.stdout_to_vec().await.unwrap_or_default();
    bytes.extend(container.stderr_to_vec().await.unwrap_or_default());
    let log = String::from_utf8_lossy(&bytes).into_owned();
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(15)..].join("\n")
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// The error with its causes: the first line alone rarely says what happened.
fn chain(error: testcontainers::TestcontainersError) -> String {
    let mut said = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(error) = cause {
        said = format!("{said}: {error}");
        cause = error.source();
    }
    said
}

/// Where the server of an image listens.
fn port_in_image(kind: Kind) -> u16 {
    match kind {
        Kind::Postgres => 5432,
        Kind::MySql | Kind::MariaDb => 3306,
    }
}
