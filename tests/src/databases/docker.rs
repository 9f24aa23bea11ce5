//! Starts database servers as containers of a Docker engine.
//!
//! The data lives in memory and the port is published on the loopback interface only. A guard
//! removes the container even when this process is killed.

use std::collections::HashMap;
use std::process::Stdio;
use std::time::Duration;

use testcontainers::bollard::models::PortBinding;
use testcontainers::core::client::docker_client_instance;
use testcontainers::core::{ExecCommand, IntoContainerPort as _, Mount};
use testcontainers::runners::AsyncRunner as _;
use testcontainers::{ContainerAsync, GenericImage, ImageExt as _};

use super::process::Guarded;
use super::{Kind, PASSWORD, PERFORMANCE_SCHEMA, POSTGRES_AUTHENTICATION, Release, first_answer};

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
            &[
                "--max-connections=400",
                PERFORMANCE_SCHEMA[0],
                PERFORMANCE_SCHEMA[1],
                PERFORMANCE_SCHEMA[2],
            ],
        ),
    };
    image
        .with_env_var(variable, PASSWORD)
        .with_env_var("POSTGRES_HOST_AUTH_METHOD", POSTGRES_AUTHENTICATION)
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

/// A server that is made of several, for one test: what it is and what runs in it is up to the
/// test. Dropping it removes the container.
#[derive(Debug)]
pub struct Appliance {
    // Removes the container before `testcontainers` would, which needs a runtime for it.
    _guard: Guarded,
    container: ContainerAsync<GenericImage>,
}

impl Appliance {
    /// Starts the image that the variable names, or `default`, with these ports published on the
    /// loopback interface.
    ///
    /// # Errors
    /// There is no engine, or it has no such image and cannot get it.
    pub async fn start(
        variable: &str,
        default: &str,
        environment: &[(&str, &str)],
        arguments: &[&str],
        ports: &[u16],
    ) -> Result<Self, String> {
        let image = std::env::var(variable).unwrap_or_else(|_| default.to_owned());
        let (name, tag) = image.rsplit_once(':').unwrap_or((&image, "latest"));
        let mut image = GenericImage::new(name, tag);
        for port in ports {
            image = image.with_exposed_port(port.tcp());
        }
        let bindings: HashMap<_, _> = (ports.iter())
            .map(|port| {
                let loopback = PortBinding {
                    host_ip: Some("127.0.0.1".to_owned()),
                    host_port: None,
                };
                (format!("{port}/tcp"), Some(vec![loopback]))
            })
            .collect();
        let mut request = image
            .with_cmd(arguments.iter().copied())
            .with_host_config_modifier(move |config| {
                config.publish_all_ports = Some(false);
                config.port_bindings = Some(bindings.clone());
            });
        for (name, value) in environment {
            request = request.with_env_var(*name, *value);
        }
        let container = request.start().await.map_err(chain);
        let container = container.map_err(|error| format!("{variable}: {error}"))?;
        let guard = Guarded::start(
            "",
            r#"docker rm --force --volumes "$1" >/dev/null"#,
            [container.id()],
            None,
            Stdio::null(),
        );
        Ok(Self {
            _guard: guard.map_err(text)?,
            container,
        })
    }

    /// Where a port of the container is reached on the loopback interface.
    ///
    /// # Errors
    /// The port was not published.
    pub async fn port(&self, port: u16) -> Result<u16, String> {
        self.container.get_host_port_ipv4(port).await.map_err(chain)
    }

    /// The address of the container for others.
    ///
    /// # Errors
    /// It has none.
    pub async fn address(&self) -> Result<String, String> {
        Ok(self.run("hostname -i").await?.trim().to_owned())
    }

    /// Runs a script of the shell in the container, to its end, and gives what it wrote.
    ///
    /// # Errors
    /// The script failed; the text holds what it wrote.
    pub async fn run(&self, script: &str) -> Result<String, String> {
        let command = ExecCommand::new(["sh", "-ec", script]);
        let mut done = self.container.exec(command).await.map_err(chain)?;
        let out = done.stdout_to_vec().await.map_err(chain)?;
        let complaints = done.stderr_to_vec().await.map_err(chain)?;
        match done.exit_code().await.map_err(chain)? {
            Some(0) => Ok(String::from_utf8_lossy(&out).into_owned()),
            code => {
                let said = [out, complaints].concat();
                Err(format!("{code:?}: {}", String::from_utf8_lossy(&said)))
            }
        }
    }
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
