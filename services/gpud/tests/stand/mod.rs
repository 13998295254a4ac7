//! The daemon on a private bus and broker, with a real server; and that server alone, to compare.

#![allow(clippy::unwrap_used, reason = "functions beside the tests unwrap as the tests themselves do")]

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use api::dbus::{
    CONTRACTS, Device1Proxy, GPU_DEVICE, GPU_NAME, GPU_ROOT, Job1Proxy, LanguageModel1Proxy, Models1Proxy,
    TextGeneration1Proxy, language_model_path,
};
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::{Broker, BrokerOptions, Bus, Daemon, Process, workspace};
use zbus::fdo::IntrospectableProxy;
use zbus::{Connection, Variant, connection};

/// TIMEOUT: far longer than anything here takes on a slow machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(900);
/// How often something that nobody announces is looked at.
const GLANCE: Duration = Duration::from_millis(20);

/// Lets a test stand in for polkit.
const STUBS: &str = r#"<busconfig><policy context="default">
<allow own="org.freedesktop.PolicyKit1"/><allow send_destination="org.freedesktop.PolicyKit1"/>
</policy></busconfig>"#;

fn variable(name: &str) -> PathBuf {
    std::env::var_os(name).unwrap_or_else(|| panic!("{name} is not set: cargo xtask llama test")).into()
}

/// The model's file.
pub(crate) fn model() -> PathBuf {
    variable("CAIRN_LLAMA_MODEL")
}

fn server() -> PathBuf {
    variable("CAIRN_LLAMA_SERVER")
}

/// A chat as OpenAI's endpoints take it, answered with the likeliest tokens.
pub(crate) fn chat(question: &str, tokens: u32) -> Value {
    json!({"model": "smollm2", "messages": [{"role": "user", "content": question}],
        "temperature": 0.0, "max_tokens": tokens})
}

/// The text of an answer of OpenAI's kind.
pub(crate) fn text_of(answer: &Value) -> String {
    let text = answer.pointer("/choices/0/message/content").and_then(Value::as_str);
    text.unwrap_or_else(|| panic!("no text in {answer}")).to_owned()
}

/// The code of an error of OpenAI's kind.
pub(crate) fn error_of(answer: &Value) -> String {
    let error = &answer["error"];
    for member in ["message", "type"] {
        assert!(error[member].is_string(), "no {member} in {answer}");
    }
    error["code"].as_str().unwrap_or_default().to_owned()
}

/// Posts JSON. Returns status and body.
fn post(url: &str, body: &Value) -> (u16, String) {
    let agent = ureq::Agent::config_builder().http_status_as_error(false).timeout_global(Some(PATIENCE)).build();
    let mut answer =
        ureq::Agent::new_with_config(agent).post(url).content_type("application/json").send(body.to_string()).unwrap();
    (answer.status().as_u16(), answer.body_mut().read_to_string().unwrap())
}

async fn post_json(url: String, body: Value) -> (u16, Value) {
    let (status, text) = tokio::task::spawn_blocking(move || post(&url, &body)).await.unwrap();
    (status, serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}")))
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// The server without the daemon, with the arguments that the daemon gives it.
pub(crate) struct Alone {
    url: String,
    pid: u32,
    _process: Process,
}

impl Alone {
    pub(crate) async fn start() -> Self {
        let port = free_port();
        let mut command = Command::new(server());
        command.arg("--model").arg(model()).args(["--host", "127.0.0.1", "--port", &port.to_string()]);
        command.args(["--ctx-size", "2048", "--batch-size", "512", "--ubatch-size", "512", "--threads", "1"]);
        command.args(["--parallel", "1", "--gpu-layers", "0", "--cache-ram", "0", "--device", "none"]);
        command.args(["--fit", "off", "--offline", "--no-ui", "--no-slots"]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut process = Process::start(&mut command, "of cargo xtask llama").unwrap();
        let pid = process.child().id();
        let url = format!("http://127.0.0.1:{port}");
        let health = format!("{url}/health");
        let healthy = async {
            loop {
                let health = health.clone();
                let answer = tokio::task::spawn_blocking(move || ureq::get(&health).call()).await.unwrap();
                if answer.is_ok() {
                    return;
                }
                tokio::time::sleep(GLANCE).await;
            }
        };
        tokio::time::timeout(PATIENCE, healthy).await.unwrap();
        // What the daemon asks of a new server.
        let proof = json!({"prompt": [1], "n_predict": 1, "cache_prompt": false});
        post_json(format!("{url}/completion"), proof).await;
        Self { url, pid, _process: process }
    }

    /// The number of its process.
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) async fn ask(&self, question: &str, tokens: u32) -> String {
        text_of(&post_json(format!("{}/v1/chat/completions", self.url), chat(question, tokens)).await.1)
    }
}

/// The daemon, and a client on its bus.
pub(crate) struct Stand {
    pub(crate) client: Connection,
    daemon: Mutex<Daemon>,
    url: String,
    broker: Broker,
    bus: Bus,
    folder: TempDir,
    config: String,
}

impl Stand {
    /// A daemon with more settings, which are the first lines of its configuration.
    pub(crate) async fn start(more: &str) -> Self {
        Self::with_server(tempfile::tempdir().unwrap(), &server(), Some(&model()), more).await
    }

    /// A daemon that has no model, and whose server does nothing.
    pub(crate) async fn empty() -> Self {
        Self::with_server(tempfile::tempdir().unwrap(), Path::new("/bin/true"), None, "").await
    }

    /// Another daemon with the same configuration. It must end by itself, and say why.
    pub(crate) async fn second(&self) -> String {
        let program = Path::new(env!("CARGO_BIN_EXE_gpud"));
        let mut daemon = Daemon::start(program, &self.config, &[], &[]).unwrap();
        let started = tokio::task::spawn_blocking(move || daemon.wait_for("READY=1", PATIENCE));
        started.await.unwrap().unwrap_err().to_string()
    }

    /// As [`Stand::start`], where the machine has a GPU whose memory lasts for `ubatch` tokens at once: the real server
    /// behind a script that lists the GPU, and ends as the server does when the driver refuses memory.
    pub(crate) async fn with_gpu(ubatch: u64) -> Self {
        let text = include_str!("gpu.sh").replace("@SERVER@", &server().display().to_string());
        Self::with_script(&text.replace("@UBATCH@", &ubatch.to_string())).await
    }

    /// As [`Stand::start`], with a script in place of the server.
    pub(crate) async fn with_script(text: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("llama-server");
        std::fs::write(&script, text).unwrap();
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
        Self::with_server(folder, &script, Some(&model()), "").await
    }

    async fn with_server(folder: TempDir, server: &Path, model: Option<&Path>, more: &str) -> Self {
        let policy = workspace().join("services/gpud/dist/org.cairn.Gpu1.conf");
        let broker = Broker::start(BrokerOptions::default()).unwrap();
        let stubs = folder.path().join("stubs.conf");
        std::fs::write(&stubs, STUBS).unwrap();
        let bus = Bus::with_policies(&[&policy, &stubs], &["gpud"], &["cairn-infer"]).unwrap();
        let models = folder.path().join("models");
        std::fs::create_dir(&models).unwrap();
        if let Some(model) = model {
            std::os::unix::fs::symlink(model, models.join("smollm2.gguf")).unwrap();
        }
        let port = free_port();
        let config = format!(
            "{more}device-name = \"d\"\nserver = {:?}\nmodels = [{models:?}]\nruntime = {:?}\ncontext = 2048\nthreads = 1\n\
             bus = {{ address = {:?} }}\n[http]\nlisten = \"127.0.0.1:{port}\"\n[mqtt]\nurl = {:?}\n",
            server,
            folder.path().join("run"),
            bus.address(),
            broker.url()
        );
        let program = Path::new(env!("CARGO_BIN_EXE_gpud"));
        let mut daemon = Daemon::start(program, &config, &[], &[]).unwrap();
        daemon.wait_for("READY=1", PATIENCE).unwrap();
        let client = connection::Builder::address(bus.address()).build().await.unwrap();
        let url = format!("http://127.0.0.1:{port}");
        let stand = Self { client, daemon: daemon.into(), url, broker, bus, folder, config };
        let health = format!("{}/health", stand.url);
        stand
            .until(async || {
                let health = health.clone();
                tokio::task::spawn_blocking(move || ureq::get(&health).call().is_ok()).await.unwrap()
            })
            .await;
        stand
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The address of the bus.
    pub(crate) fn bus(&self) -> &str {
        self.bus.address()
    }

    /// The file of the model.
    pub(crate) fn model_file(&self) -> PathBuf {
        self.folder.path().join("models/smollm2.gguf")
    }

    fn log(&self) -> String {
        self.daemon.lock().unwrap().log()
    }

    /// Waits until `condition` holds.
    pub(crate) async fn until(&self, mut condition: impl AsyncFnMut() -> bool) {
        let wait = async {
            while !condition().await {
                tokio::time::sleep(GLANCE).await;
            }
        };
        tokio::time::timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("{}", self.log()));
    }

    pub(crate) async fn models(&self) -> Models1Proxy<'static> {
        Models1Proxy::builder(&self.client).destination(GPU_NAME).path(GPU_ROOT).build().await.unwrap()
    }

    pub(crate) async fn device(&self) -> Device1Proxy<'static> {
        Device1Proxy::builder(&self.client).destination(GPU_NAME).path(GPU_DEVICE).build().await.unwrap()
    }

    pub(crate) async fn model(&self) -> LanguageModel1Proxy<'static> {
        LanguageModel1Proxy::new(&self.client, language_model_path("smollm2")).await.unwrap()
    }

    pub(crate) async fn generation(&self) -> TextGeneration1Proxy<'static> {
        TextGeneration1Proxy::new(&self.client, language_model_path("smollm2")).await.unwrap()
    }

    /// Starts an answer of the likeliest tokens.
    pub(crate) async fn begin(
        &self,
        question: &str,
        tokens: u32,
        more: &[(&'static str, Variant<'static>)],
    ) -> zbus::Result<(Job1Proxy<'static>, OwnedFd)> {
        let mut options = HashMap::from([("temperature", Variant::F64(0.0)), ("max-tokens", Variant::U32(tokens))]);
        for (key, value) in more {
            options.insert(key, value.try_clone().unwrap());
        }
        let (job, pipe) = self.generation().await.generate(&[("user", question)], options).await?;
        let job = Job1Proxy::builder(&self.client).destination(GPU_NAME).path(job).build().await?;
        Ok((job, pipe.into()))
    }

    /// A whole answer, or the name and the text of the error.
    pub(crate) async fn generate(&self, question: &str, tokens: u32) -> Result<String, String> {
        let (job, pipe) = self.begin(question, tokens, &[]).await.map_err(|error| error.to_string())?;
        let read = tokio::task::spawn_blocking(move || {
            let mut text = String::new();
            File::from(pipe).read_to_string(&mut text).map(|_| text)
        });
        let text = tokio::time::timeout(PATIENCE, read).await.unwrap().unwrap().unwrap();
        self.end_of(&job).await.map(|()| text)
    }

    /// Waits until an answer begins.
    pub(crate) async fn first_bytes(&self, pipe: OwnedFd) {
        let read = tokio::task::spawn_blocking(move || {
            let mut file = File::from(pipe);
            let read = file.read(&mut [0; 1]).unwrap();
            // Goes on reading, as a client does.
            std::thread::spawn(move || std::io::copy(&mut file, &mut std::io::sink()));
            read
        });
        assert_eq!(tokio::time::timeout(PATIENCE, read).await.unwrap().unwrap(), 1, "{}", self.log());
    }

    /// Waits until a job has ended, and says how where it is not done.
    pub(crate) async fn end_of(&self, job: &Job1Proxy<'_>) -> Result<(), String> {
        self.until(async || job.inner().get_property::<String>("State").await.unwrap() != "running").await;
        match job.inner().get_property::<String>("State").await.unwrap().as_str() {
            "done" => Ok(()),
            state => {
                let (name, message): (String, String) = job.inner().get_property("Error").await.unwrap();
                Err(format!("{state}: {name}: {message}"))
            }
        }
    }

    /// Loads a file.
    pub(crate) async fn load(&self, file: &Path) -> Result<(), String> {
        let job = self.models().await.load_model(file.to_str().unwrap(), HashMap::new()).await.unwrap();
        let job = Job1Proxy::builder(&self.client).destination(GPU_NAME).path(job).build().await.unwrap();
        self.end_of(&job).await
    }

    /// Posts to OpenAI's endpoints.
    pub(crate) async fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        post_json(format!("{}{path}", self.url), body.clone()).await
    }

    /// The text of a stream of OpenAI's kind.
    pub(crate) async fn streamed(&self, question: &str, tokens: u32) -> String {
        let mut body = chat(question, tokens);
        body["stream"] = json!(true);
        let url = format!("{}/v1/chat/completions", self.url);
        let (status, stream) = tokio::task::spawn_blocking(move || post(&url, &body)).await.unwrap();
        assert_eq!(status, 200, "{stream}");
        assert!(stream.trim_end().ends_with("data: [DONE]"), "{stream}");
        let events = stream.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|data| *data != "[DONE]");
        let events = events.map(|data| serde_json::from_str::<Value>(data).unwrap());
        events.filter_map(|event| Some(event.pointer("/choices/0/delta/content")?.as_str()?.to_owned())).collect()
    }

    /// Sends bytes over HTTP as they are. Returns what comes back.
    pub(crate) async fn raw(&self, bytes: Vec<u8>) -> String {
        let address = self.url.strip_prefix("http://").unwrap().to_owned();
        let exchange = tokio::task::spawn_blocking(move || {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            // It may be refused before it is all sent.
            let _ = stream.write_all(&bytes);
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer);
            String::from_utf8_lossy(&answer).into_owned()
        });
        exchange.await.unwrap()
    }

    /// Sends a request over HTTP, reads so many bytes of the answer, and goes away.
    pub(crate) async fn go_away(&self, request: &str, bytes: usize) {
        let (address, request) = (self.url.strip_prefix("http://").unwrap().to_owned(), request.to_owned());
        let exchange = tokio::task::spawn_blocking(move || {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream.write_all(request.as_bytes()).unwrap();
            stream.read_exact(&mut vec![0; bytes]).unwrap();
        });
        exchange.await.unwrap();
    }

    /// The text of the replies to a request by MQTT, whose numbers must follow each other.
    pub(crate) async fn over_mqtt(&self, question: &str, tokens: u32) -> String {
        let request = json!({"id": "7", "messages": [{"role": "user", "content": question}],
            "options": {"temperature": 0, "max_tokens": tokens}});
        let replies = self.replies("smollm2", &[request.to_string()], 1).await;
        assert!(replies.last().unwrap()["usage"]["completion_tokens"].as_u64() > Some(0), "{replies:?}");
        replies.iter().filter_map(|reply| reply["text"].as_str()).collect()
    }

    /// Sends requests by MQTT. Returns all replies up to the `last` one that ends an answer; those to each request must
    /// have numbers that follow each other.
    pub(crate) async fn replies(&self, model: &str, requests: &[String], last: usize) -> Vec<Value> {
        // The daemon says when it listens.
        let mut state = self.broker.client("mosquitto_sub").unwrap();
        state.args(["-V", "5", "-C", "1", "-t", "cairn/d/llm/state"]).stdout(Stdio::piped());
        let state = tokio::task::spawn_blocking(move || state.output().unwrap().stdout).await.unwrap();
        assert_eq!(String::from_utf8(state).unwrap(), "online\n");
        // A retained message, so that the listener says when it listens.
        let mut mark = self.broker.client("mosquitto_pub").unwrap();
        assert!(mark.args(["-V", "5", "-q", "1", "-r", "-t", "replies", "-m", "mark"]).status().unwrap().success());
        let mut listen = self.broker.client("mosquitto_sub").unwrap();
        listen.args(["-V", "5", "-q", "1", "-t", "replies"]).stdout(Stdio::piped());
        let mut listener = Process::start(&mut listen, "mosquitto-clients").unwrap();
        let mut lines = BufReader::new(listener.child().stdout.take().unwrap()).lines().map_while(Result::ok);
        let mut lines = tokio::task::spawn_blocking(move || {
            assert_eq!(lines.next().as_deref(), Some("mark"));
            lines
        })
        .await
        .unwrap();
        let mut publish = self.broker.client("mosquitto_pub").unwrap();
        publish.args(["-V", "5", "-q", "1", "-t", &format!("cairn/d/llm/{model}/request"), "-l"]);
        publish.args(["-D", "publish", "response-topic", "replies", "-D", "publish", "correlation-data", "c"]);
        let mut publisher = Process::start(publish.stdin(Stdio::piped()), "mosquitto-clients").unwrap();
        let mut input = publisher.child().stdin.take().unwrap();
        requests.iter().for_each(|request| writeln!(input, "{request}").unwrap());
        drop(input);
        let gathered = tokio::task::spawn_blocking(move || {
            let (mut replies, mut next, mut ended) = (Vec::new(), HashMap::new(), 0);
            let objects = lines.by_ref().filter_map(|line| serde_json::from_str::<Value>(&line).ok());
            for reply in objects.filter(Value::is_object) {
                // What could not be read has no name.
                if let Some(id) = reply["id"].as_str() {
                    let seq: &mut u64 = next.entry(id.to_owned()).or_default();
                    assert_eq!(reply["seq"], json!(*seq), "{reply}");
                    *seq += 1;
                }
                ended += usize::from(reply["final"] == json!(true));
                replies.push(reply);
                if ended == last {
                    return replies;
                }
            }
            panic!("the last reply did not come");
        });
        tokio::time::timeout(PATIENCE, gathered).await.unwrap().unwrap()
    }

    /// Kills the server of the model, as the kernel would.
    pub(crate) fn kill_server(&self) {
        let pid = rustix::process::Pid::from_raw(self.server_pid().try_into().unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    }

    /// The number of the daemon's process.
    pub(crate) fn daemon_pid(&self) -> u32 {
        self.daemon.lock().unwrap().pid()
    }

    /// The number of the process of the model's server.
    pub(crate) fn server_pid(&self) -> u32 {
        let daemon = self.daemon_pid();
        let children = std::fs::read_to_string(format!("/proc/{daemon}/task/{daemon}/children")).unwrap_or_default();
        let tasks = std::fs::read_dir(format!("/proc/{daemon}/task")).unwrap().flatten();
        let all = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
        let pids: BTreeSet<u32> = all
            .chain([children])
            .flat_map(|text| text.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<_>>())
            .collect();
        assert_eq!(pids.len(), 1, "{pids:?}");
        pids.into_iter().next().unwrap()
    }

    /// A polkit that allows everything, or nothing.
    pub(crate) async fn polkit(&self, allows: bool) -> Connection {
        let stub = connection::Builder::address(self.bus.address());
        let stub = stub.serve_at("/org/freedesktop/PolicyKit1/Authority", Polkit { allows }).build().await.unwrap();
        stub.request_name("org.freedesktop.PolicyKit1").await.unwrap();
        stub
    }

    /// Compares the live objects with the contracts. Returns the names of the interfaces that were found.
    pub(crate) async fn compare_with_contracts(&self, paths: &[String]) -> Vec<String> {
        let mut compared = BTreeSet::new();
        for path in paths {
            let proxy = IntrospectableProxy::builder(&self.client).destination(GPU_NAME).path(path.as_str());
            let live = testkit::interfaces(&proxy.build().await.unwrap().introspect().await.unwrap());
            for &(name, contract) in CONTRACTS {
                if let Some(live) = live.get(name) {
                    assert_eq!(live, &testkit::interfaces(contract)[name], "{name} at {path}");
                    compared.insert(name.to_owned());
                }
            }
        }
        compared.into_iter().collect()
    }
}

impl Drop for Stand {
    /// A daemon that is asked to stop takes its servers with it.
    fn drop(&mut self) {
        let _ = self.daemon.lock().unwrap().terminate();
    }
}

/// A polkit that always says the same.
struct Polkit {
    allows: bool,
}

#[zbus::interface(name = "org.freedesktop.PolicyKit1.Authority")]
impl Polkit {
    fn check_authorization(
        &self,
        _subject: (String, HashMap<String, zbus::wire::OwnedVariant>),
        _action: &str,
        _details: HashMap<String, String>,
        _flags: u32,
        _cancellation: &str,
    ) -> (bool, bool, HashMap<String, String>) {
        (self.allows, false, HashMap::new())
    }
}
