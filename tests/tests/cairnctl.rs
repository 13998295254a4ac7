//! `cairnctl` as a person and a script use it, towards daemons that run, fail, are away and come back.

mod machine;
mod service;

use std::fs;
use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, LazyLock, Mutex, mpsc};

use machine::{Machine, Setup};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use service::until;
use testkit::{Bus, build, workspace};

static PROGRAM: LazyLock<PathBuf> = LazyLock::new(|| build("cairnctl").unwrap());

fn command(bus: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(&*PROGRAM);
    command.args(["--bus", bus]).args(arguments);
    command
}

/// Runs the program; the daemons' other side is in this process, so it must not wait.
async fn run(bus: &Bus, arguments: &[&str]) -> Output {
    let mut command = command(bus.address(), arguments);
    tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
}

async fn text(bus: &Bus, arguments: &[&str]) -> String {
    let output = run(bus, arguments).await;
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

async fn json(bus: &Bus, arguments: &[&str]) -> Value {
    serde_json::from_str(&text(bus, &[&["--json"], arguments].concat()).await).unwrap()
}

/// A program that prints for ever, and its lines. It ends with the value.
struct Printing(Child, mpsc::Receiver<String>);

impl Printing {
    fn start(bus: &Bus, arguments: &[&str]) -> Self {
        let mut command = command(bus.address(), arguments);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (send, printed) = mpsc::channel();
        let outputs: [Box<dyn Read + Send>; 2] =
            [Box::new(child.stdout.take().unwrap()), Box::new(child.stderr.take().unwrap())];
        for output in outputs {
            let (lines, send) = (BufReader::new(output).lines(), send.clone());
            std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| send.send(line)));
        }
        Self(child, printed)
    }

    /// The first line from now on that `is_it` takes.
    async fn next(&self, what: &str, is_it: impl Fn(&str) -> bool) -> String {
        let mut found = None;
        until(what, || {
            found = self.1.try_iter().find(|line| is_it(line));
            found.is_some()
        })
        .await;
        found.unwrap()
    }
}

impl Drop for Printing {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_went_wrong_is_listed_watched_and_gathered() {
    let machine = Machine::start(Setup::default()).await;
    let bus = &machine.bus;
    assert_eq!(text(bus, &["incidents"]).await, "none\n");
    let watch = Printing::start(bus, &["--json", "watch"]);
    watch.next("a watcher", |line| line.starts_with("watching")).await;
    machine.hang().await;
    machine.settled(1).await;
    let watched = watch.next("an incident", |line| line.contains("npu-job-timeout")).await;
    let watched: Value = serde_json::from_str(&watched).unwrap();
    let listed = json(bus, &["incidents"]).await;
    assert_eq!(listed[0]["id"], watched["id"]);
    assert_eq!((&listed[0]["core"], &listed[0]["model"]), (&0.into(), &"mnist".into()));
    let shown = text(bus, &["incidents"]).await;
    for part in
        ["error npu-job-timeout, on fdab0000.npu, model mnist", "did fresh-context", "    rocket fdab0000.npu: NPU"]
    {
        assert!(shown.contains(part), "{part} is not in {shown}");
    }

    let health = json(bus, &["health"]).await;
    assert_eq!((&health["thermal_level"], &health["counters"]["incidents"]), (&"normal".into(), &1.into()));
    assert!(text(bus, &["health"]).await.contains("thermal level normal; last start: first"));

    let folder = tempfile::tempdir().unwrap();
    let archive = folder.path().join("bundle.tar.gz");
    let output = ["bundle", "--output", archive.to_str().unwrap()];
    assert_eq!(json(bus, &output).await["bytes"], fs::metadata(&archive).unwrap().len());
    let list = Command::new("tar").arg("-tzf").arg(&archive).output().unwrap();
    assert!(String::from_utf8(list.stdout).unwrap().contains("cairn/incidents.json"));
    // What is there is not written over.
    let again = run(bus, &output).await;
    assert_eq!(again.status.code(), Some(1));
    assert!(String::from_utf8(again.stderr).unwrap().contains("bundle.tar.gz"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_view_has_every_daemon_that_is_there_and_says_which_is_not() {
    let mut machine = Machine::start(Setup::default()).await;
    machine.infer(1).await.unwrap();
    let once = json(&machine.bus, &["top", "--once"]).await;
    assert_eq!(once["npu"]["there"]["models"][0]["name"], "mnist");
    assert_eq!(once["npu"]["there"]["models"][0]["answers"], 1);
    assert_eq!(once["health"]["there"]["gauges"]["celsius.npu-thermal"], 61.25);
    assert_eq!(once["update"]["absent"], "not running");
    let shown = text(&machine.bus, &["top", "--once"]).await;
    for part in
        ["npu-thermal", "61.2 °C", "simulated RK3588 NPU", "0 of 32", "mnist", "1 answered", "not running", "none"]
    {
        assert!(shown.contains(part), "{part} is not in\n{shown}");
    }

    let views = Printing::start(&machine.bus, &["--json", "top"]);
    let absent = r#""health":{"absent":"not running"}"#;
    views.next("a first view", |line| !line.contains(absent)).await;
    machine.healthd.kill().unwrap();
    views.next("a view without healthd", |line| line.contains(absent)).await;
    machine.start_healthd();
    views.next("a view with healthd", |line| !line.contains(absent)).await;
    machine.npud.kill().unwrap();
    let away = r#""npu":{"absent":"not running"}"#;
    let view = views.next("a view without npud", |line| line.contains(away)).await;
    assert!(!view.contains(absent));
}

/// `cairnctl top` in a terminal of its own, and what it wrote there.
struct Terminal {
    script: Child,
    screen: Arc<Mutex<Vec<u8>>>,
    folder: tempfile::TempDir,
}

impl Terminal {
    fn start(bus: &Bus) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (program, pid) = (PROGRAM.display(), folder.path().join("pid"));
        let top = format!("echo $$ > {}; exec {program} --bus {} top", pid.display(), bus.address());
        let inside = format!("stty rows 40 cols 110; sh -c '{top}'; echo status=$?; stty -a");
        let mut script = Command::new("script");
        script.args(["--quiet", "--flush", "--command", &inside, "/dev/null"]).env("TERM", "xterm");
        let mut script = script.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (mut output, screen) = (script.stdout.take().unwrap(), Arc::<Mutex<Vec<u8>>>::default());
        let seen = Arc::clone(&screen);
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(length @ 1..) = output.read(&mut bytes) {
                seen.lock().unwrap().extend(&bytes[..length]);
            }
        });
        Self { script, screen, folder }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.screen.lock().unwrap()).into_owned()
    }

    /// Waits for a word; words are written in one piece.
    async fn shows(&self, word: &str) {
        until(word, || self.text().contains(word)).await;
    }

    fn press(&mut self, keys: &[u8]) {
        self.script.stdin.as_mut().unwrap().write_all(keys).unwrap();
    }

    fn terminate(&self) {
        let pid: i32 = fs::read_to_string(self.folder.path().join("pid")).unwrap().trim().parse().unwrap();
        kill_process(Pid::from_raw(pid).unwrap(), Signal::TERM).unwrap();
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.script.kill();
        let _ = self.script.wait();
    }
}

/// Goes to another screen, and back. SOURCE: xterm's control sequences, private modes 1049 and 25.
const OTHER_SCREEN: &str = "\x1b[?1049h";
const OWN_SCREEN: &str = "\x1b[?1049l";
const SHOW_CURSOR: &str = "\x1b[?25h";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_live_view_follows_the_daemons_and_leaves_the_terminal_as_it_was() {
    let machine = Machine::start(Setup::default()).await;
    for (before, end) in ["q", "\x03", "SIGTERM"].into_iter().enumerate() {
        let mut terminal = Terminal::start(&machine.bus);
        terminal.shows(OTHER_SCREEN).await;
        terminal.shows("mnist").await;
        // Each incident has a row; what stood in a row before moves to the next, and is written there.
        let rows = |terminal: &Terminal| terminal.text().matches("0a1b2c3d").count();
        until("the incidents so far", || rows(&terminal) == before).await;
        machine.hang().await;
        until("the incident", || rows(&terminal) > before).await;
        match end {
            "SIGTERM" => terminal.terminate(),
            keys => terminal.press(keys.as_bytes()),
        }
        terminal.shows("status=0").await;
        // What is switched off has a minus sign before it.
        terminal.shows(" icanon ").await;
        let text = terminal.text();
        let (_, after) = text.split_once(OTHER_SCREEN).unwrap();
        assert!(after.contains(OWN_SCREEN) && after.contains(SHOW_CURSOR), "{after:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn status_1_is_refused_or_failed_and_status_2_is_wrong_arguments() {
    let policy = workspace().join("services/healthd/dist/org.cairn.Health1.conf");
    let bus = Bus::start(&policy, &["healthd"], &["cairn-infer"]).unwrap();
    for arguments in [&["health"][..], &["incidents"], &["watch"], &["bundle"]] {
        let output = run(&bus, arguments).await;
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {message}");
        assert!(message.contains("org.cairn.Health1"), "{arguments:?}: {message}");
    }
    // A view is a view also where nobody is there.
    assert_eq!(text(&bus, &["top", "--once"]).await.matches("not running").count(), 5);
    let output = run(&bus, &["top"]).await;
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().contains("no terminal"));
    for (arguments, said) in [
        (&["top", "--twice"][..], "--twice"),
        (&["health", "now"], "now"),
        (&["bundle", "--output"], "--output"),
        (&["helth"], "health"),
        (&[], "Usage"),
    ] {
        let output = run(&bus, arguments).await;
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {message}");
        assert!(message.contains(said), "{arguments:?}: {message}");
    }
    let mut nowhere = command("unix:path=/nowhere", &["health"]);
    let output = tokio::task::spawn_blocking(move || nowhere.output().unwrap()).await.unwrap();
    assert_eq!(output.status.code(), Some(1));
}
