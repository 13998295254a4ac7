//! `cairnctl chat`.

use std::io::Write;

use anyhow::{Context as _, Result, bail};
use api::dbus::{GPU_NAME, Job1Proxy, Options, TextGeneration1Proxy, language_model_path};
use serde_json::json;
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;
use zbus::Connection;

use crate::Printer;

/// Bytes that are read at once.
const CHUNK: usize = 4096;

#[derive(Debug, clap::Args)]
pub(crate) struct Chat {
    /// Name of the language model
    model: String,
    /// What is asked; without it, standard input is
    question: Option<String>,
    /// What the model is told first
    #[arg(long)]
    system: Option<String>,
    /// The longest answer, in tokens
    #[arg(long)]
    max_tokens: Option<u32>,
    /// How far from the likeliest words; 0 takes them
    #[arg(long)]
    temperature: Option<f64>,
}

pub(crate) async fn run<W: Write>(connection: &Connection, chat: &Chat, printer: &mut Printer<'_, W>) -> Result<()> {
    let question = match &chat.question {
        Some(question) => question.clone(),
        None => std::io::read_to_string(std::io::stdin()).context("read the question")?,
    };
    let system = chat.system.as_deref().map(|text| ("system", text));
    let messages: Vec<_> = system.into_iter().chain([("user", question.as_str())]).collect();
    let mut options = Options::new();
    options.extend(chat.max_tokens.map(|tokens| ("max-tokens", tokens.into())));
    options.extend(chat.temperature.map(|temperature| ("temperature", temperature.into())));
    let model = TextGeneration1Proxy::new(connection, language_model_path(&chat.model)).await?;
    let asked = model.generate(&messages, options).await;
    let (job, text) = asked.with_context(|| format!("ask {:?}", chat.model))?;
    let job = Job1Proxy::builder(connection).destination(GPU_NAME).path(job).build().await?;
    let text = copy(pipe::Receiver::from_owned_fd(text.into()).context("read the answer")?, printer).await?;
    // The job has ended before its pipe does.
    let state = job.state().await?;
    if state != "done" {
        let (code, message) = job.error().await?;
        bail!("{state}: {code}: {message}");
    }
    if printer.json {
        printer.print(&json!({"text": text}), |_| String::new())?;
    }
    Ok(())
}

/// Prints an answer while it grows, unless JSON is wanted. Returns all of it.
async fn copy<W: Write>(mut pipe: pipe::Receiver, printer: &mut Printer<'_, W>) -> Result<String> {
    let mut text = Vec::new();
    let mut chunk = [0; CHUNK];
    loop {
        let bytes = pipe.read(&mut chunk).await.context("read the answer")?;
        if bytes == 0 {
            break;
        }
        text.extend_from_slice(&chunk[..bytes]);
        if !printer.json {
            printer.out.write_all(&chunk[..bytes])?;
            printer.out.flush()?;
        }
    }
    if !printer.json {
        writeln!(printer.out)?;
    }
    String::from_utf8(text).context("the answer is no UTF-8")
}
