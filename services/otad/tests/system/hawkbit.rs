//! A small hawkBit: one device, one action, what it was told; and a file server beside it.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

/// What the server knows.
#[derive(Debug, Default)]
struct State {
    /// The action that is open, and its bundle.
    action: Option<(u32, Vec<u8>)>,
    /// What it was told of each action, in order: execution, finished, details.
    told: Vec<(u32, String, String, String)>,
    /// What the device says about itself.
    attributes: Value,
    /// What it was asked, with the authorization.
    asked: Vec<(String, String)>,
}

/// The server. It ends with the process.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    port: u16,
    state: Arc<Mutex<State>>,
}

impl Server {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Self { port: listener.local_addr().unwrap().port(), state: Arc::default() };
        let serving = server.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let server = serving.clone();
                std::thread::spawn(move || server.serve(stream.unwrap()));
            }
        });
        server
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Opens an action.
    pub(crate) fn assign(&self, action: u32, bundle: &Path) {
        self.state.lock().unwrap().action = Some((action, std::fs::read(bundle).unwrap()));
    }

    /// What was told of an action: execution and finished, in order, without repetition.
    pub(crate) fn told(&self, action: u32) -> Vec<(String, String)> {
        let state = self.state.lock().unwrap();
        let told = state.told.iter().filter(|it| it.0 == action);
        let mut told: Vec<_> = told.map(|it| (it.1.clone(), it.2.clone())).collect();
        told.dedup();
        told
    }

    /// The details of all that was told of an action.
    pub(crate) fn details(&self, action: u32) -> String {
        let state = self.state.lock().unwrap();
        state.told.iter().filter(|it| it.0 == action).map(|it| format!("{}\n", it.3)).collect()
    }

    /// What the device said about itself last.
    pub(crate) fn attributes(&self) -> Value {
        self.state.lock().unwrap().attributes.clone()
    }

    /// The authorization that came with requests whose path contains `words`.
    pub(crate) fn authorization(&self, words: &str) -> Option<String> {
        let state = self.state.lock().unwrap();
        state.asked.iter().find(|(path, _)| path.contains(words)).map(|(_, authorization)| authorization.clone())
    }

    fn serve(&self, stream: TcpStream) {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut line = String::new();
        while reader.read_line(&mut line).is_ok_and(|bytes| bytes > 0) {
            let mut parts = line.split(' ').map(str::to_owned);
            let (method, path) = (parts.next().unwrap(), parts.next().unwrap());
            let mut headers = HashMap::new();
            loop {
                let mut header = String::new();
                reader.read_line(&mut header).unwrap();
                match header.trim_end().split_once(": ") {
                    Some((key, value)) => headers.insert(key.to_ascii_lowercase(), value.to_owned()),
                    None => break,
                };
            }
            let bytes = headers.get("content-length").map_or(0, |bytes| bytes.parse().unwrap());
            let mut body = vec![0; bytes];
            reader.read_exact(&mut body).unwrap();
            let authorization = headers.remove("authorization").unwrap_or_default();
            let (status, body) = self.answer(&method, &path, authorization, &body);
            let head = format!("HTTP/1.1 {status} x\r\nContent-Length: {}\r\n\r\n", body.len());
            let mut stream = &stream;
            if stream
                .write_all(head.as_bytes())
                .and_then(|()| if method == "HEAD" { Ok(()) } else { stream.write_all(&body) })
                .is_err()
            {
                return;
            }
            line.clear();
        }
    }

    fn answer(&self, method: &str, path: &str, authorization: String, body: &[u8]) -> (u16, Vec<u8>) {
        let mut state = self.state.lock().unwrap();
        state.asked.push((path.to_owned(), authorization));
        let base = format!("{}/DEFAULT/controller/v1/d", self.url());
        let path = path.split('?').next().unwrap();
        let rest = path.strip_prefix("/DEFAULT/controller/v1/d").unwrap_or(path);
        match (method, rest, &state.action) {
            ("GET", "", action) => {
                let mut links = json!({});
                if let Some((action, _)) = action {
                    links["deploymentBase"] = json!({"href": format!("{base}/deploymentBase/{action}?c=1")});
                }
                let answer = json!({"config": {"polling": {"sleep": "00:00:01"}}, "_links": links});
                (200, answer.to_string().into())
            }
            ("PUT", "/configData", _) => {
                state.attributes = serde_json::from_slice::<Value>(body).unwrap()["data"].take();
                (200, Vec::new())
            }
            (_, "/download/update.raucb", Some((_, bundle))) => (200, bundle.clone()),
            ("GET", deployment, Some((action, bundle))) if deployment == format!("/deploymentBase/{action}") => {
                let href = format!("{}/download/update.raucb", self.url());
                let artifact = json!({"filename": "update.raucb", "hashes": {"sha1": "", "md5": "", "sha256": ""}, "size": bundle.len(), "_links": {"download-http": {"href": href}}});
                let chunk = json!({"part": "os", "version": "any", "name": "system", "artifacts": [artifact]});
                let deployment = json!({"download": "forced", "update": "forced", "chunks": [chunk]});
                (200, json!({"id": action.to_string(), "deployment": deployment}).to_string().into())
            }
            ("POST", feedback, _) => {
                let action = feedback.strip_prefix("/deploymentBase/").and_then(|it| it.strip_suffix("/feedback"));
                let action: u32 = action.unwrap().parse().unwrap();
                let body: Value = serde_json::from_slice(body).unwrap();
                let text = |value: &Value| value.as_str().unwrap().to_owned();
                let status = &body["status"];
                let told = (
                    action,
                    text(&status["execution"]),
                    text(&status["result"]["finished"]),
                    status["details"].to_string(),
                );
                if told.1 == "closed" {
                    state.action = None;
                }
                state.told.push(told);
                (200, Vec::new())
            }
            _ => (404, Vec::new()),
        }
    }
}
