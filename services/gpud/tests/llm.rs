//! The daemon with llama.cpp's own server and a real model, as clients of all three transports meet it.
//!
//! `cargo xtask llama test` brings server and model, and names them in the environment.

#[allow(dead_code, reason = "other tests use the rest")]
mod stand;

use api::dbus::{GPU_DEVICE, GPU_NAME, GPU_ROOT, language_model_path};
use serde_json::json;
use stand::{Alone, Stand, chat, error_of, text_of};
use zbus::Variant;

/// What is asked, and how many tokens are answered.
const QUESTIONS: [(&str, u32); 2] = [("Say hello in one word.", 8), ("Name a colour of the rainbow.", 8)];
/// A question whose answer does not end soon.
const STORY: &str = "Tell me a very long story about a fox and a crow.";

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs llama-server: cargo xtask llama test"]
async fn all_transports_give_the_greedy_text_of_the_server_alone() {
    for (question, tokens) in QUESTIONS {
        // Both are asked the same in the same order, because what was read before changes how the rest is computed.
        let alone = Alone::start().await;
        let stand = Stand::start("").await;
        for transport in ["dbus", "http", "http-stream", "mqtt"] {
            let expected = alone.ask(question, tokens).await;
            let text = match transport {
                "dbus" => stand.generate(question, tokens).await.unwrap(),
                "http" => text_of(&stand.post("/v1/chat/completions", &chat(question, tokens)).await.1),
                "http-stream" => stand.streamed(question, tokens).await,
                _ => stand.over_mqtt(question, tokens).await,
            };
            assert!(!expected.is_empty());
            assert_eq!(text, expected, "{question} by {transport}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs llama-server: cargo xtask llama test"]
async fn an_answer_that_is_cancelled_makes_room_for_the_next() {
    let stand = Stand::start("").await;
    let (job, pipe) = stand.begin(STORY, 1000, &[]).await.unwrap();
    stand.first_bytes(pipe).await;
    job.cancel(Default::default()).await.unwrap();
    assert_eq!(job.state().await.unwrap(), "cancelled");
    assert!(!stand.generate(QUESTIONS[0].0, 4).await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs llama-server: cargo xtask llama test"]
async fn two_clients_are_answered_one_after_another() {
    let stand = Stand::start("").await;
    let (first, second) = tokio::join!(stand.generate(QUESTIONS[0].0, 8), stand.generate(QUESTIONS[1].0, 8));
    assert!(!first.unwrap().is_empty() && !second.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs llama-server: cargo xtask llama test"]
async fn a_full_queue_is_said_at_once_on_all_transports() {
    let stand = Stand::start("queue-capacity = 1\n").await;
    let (running, pipe) = stand.begin(STORY, 1000, &[]).await.unwrap();
    stand.first_bytes(pipe).await;
    let (waiting, _pipe) = stand.begin(STORY, 1000, &[]).await.unwrap();
    stand.until(async || stand.device().await.queue_depth().await.unwrap() == 1).await;
    let refused = stand.generate(QUESTIONS[0].0, 4).await.unwrap_err();
    assert!(refused.contains("org.cairn.Error.QueueFull"), "{refused}");
    let (status, body) = stand.post("/v1/chat/completions", &chat("hello", 4)).await;
    assert_eq!((status, error_of(&body).as_str()), (429, "QueueFull"));
    for job in [waiting, running] {
        job.cancel(Default::default()).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs llama-server: cargo xtask llama test"]
async fn a_server_that_is_killed_costs_one_answer_with_the_reason() {
    let stand = Stand::start("").await;
    let (job, pipe) = stand.begin(STORY, 1000, &[]).await.unwrap();
    stand.first_bytes(pipe).await;
    stand.kill_server();
    let error = stand.end_of(&job).await.unwrap_err();
    assert!(error.contains("org.cairn.Error.DeviceLost") && error.contains("SIGKILL"), "{error}");
    assert!(!stand.generate(QUESTIONS[0].0, 4).await.unwrap().is_empty());
    assert!(stand.model().await.reason().await.unwrap().contains("SIGKILL"));
    assert_eq!(stand.device().await.counters().await.unwrap()["servers-lost"], 1);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs llama-server: cargo xtask llama test"]
async fn a_server_that_always_ends_makes_nobody_wait() {
    // The driver that ends it ends the list of devices as well.
    let stand = Stand::with_script("#!/bin/sh\necho 'error: no driver' >&2\nexit 3\n").await;
    let error = stand.generate(QUESTIONS[0].0, 4).await.unwrap_err();
    assert!(
        error.contains("org.cairn.Error.DeviceLost") && error.contains("exit status: 3: error: no driver"),
        "{error}"
    );
    stand.until(async || stand.generate(QUESTIONS[0].0, 4).await.unwrap_err().contains("it is started again in")).await;
    let (status, answer) = stand.post("/v1/chat/completions", &chat("x", 1)).await;
    assert!(status == 503 && ["Busy", "DeviceLost"].contains(&error_of(&answer).as_str()), "{status}: {answer}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs llama-server: cargo xtask llama test"]
async fn a_file_that_is_replaced_is_the_model_from_the_next_request_on() {
    let stand = Stand::start("").await;
    let (file, new) = (stand.model_file(), stand.model_file().with_extension("new"));
    let replace = |fill: &dyn Fn()| {
        fill();
        std::fs::rename(&new, &file).unwrap();
    };
    let text = stand.generate(QUESTIONS[0].0, 4).await.unwrap();
    let first = stand.server_pid();
    replace(&|| std::fs::write(&new, b"GGML").unwrap());
    let error = stand.generate(QUESTIONS[0].0, 4).await.unwrap_err();
    assert!(error.contains("org.cairn.Error.Unsupported") && error.contains("does not begin with GGUF"), "{error}");
    replace(&|| assert!(std::fs::copy(stand::model(), &new).unwrap() > 0));
    assert_eq!(stand.generate(QUESTIONS[0].0, 4).await.unwrap(), text);
    assert_ne!(stand.server_pid(), first);

    // Cut short below a server that reads it: what that one says is lost, and the next request says why.
    let (job, pipe) = stand.begin(STORY, 1000, &[]).await.unwrap();
    stand.first_bytes(pipe).await;
    let cut = std::fs::File::options().write(true).open(&file).unwrap();
    cut.set_len(cut.metadata().unwrap().len() / 2).unwrap();
    let _ = stand.end_of(&job).await;
    let error = stand.generate(QUESTIONS[0].0, 4).await.unwrap_err();
    assert!(error.contains("org.cairn.Error.Unsupported") && error.contains("outside the file"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs llama-server: cargo xtask llama test"]
async fn a_client_that_goes_away_in_mid_answer_costs_nobody_their_turn() {
    let stand = Stand::start("").await;
    let mut body = chat(STORY, 100_000);
    body["stream"] = json!(true);
    body["colour"] = json!({"unknown": [1, 2]});
    let body = body.to_string();
    let head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length";
    let request = format!("{head}: {}\r\n\r\n{body}", body.len());
    for wait_for in [0, 1000] {
        stand.go_away(&request, wait_for).await;
        assert!(!stand.generate(QUESTIONS[0].0, 4).await.unwrap().is_empty());
    }
    // One that was sent more than once is answered once, and all in the order in which they were sent.
    let (story, pipe) = stand.begin(STORY, 1000, &[]).await.unwrap();
    stand.first_bytes(pipe).await;
    let request =
        |id: &str| json!({"id": id, "messages": [{"role": "user", "content": "x"}], "options": {"max_tokens": 2}});
    let requests = ["a", "a", "a", "b", "c", "d"].map(|id| request(id).to_string());
    let replies = async {
        stand.until(async || stand.device().await.queue_depth().await.unwrap() == 4).await;
        story.cancel(Default::default()).await.unwrap();
    };
    let ((), replies) = tokio::join!(replies, stand.replies("smollm2", &requests, 4));
    let ends = replies.iter().filter(|reply| reply["final"] == json!(true)).map(|reply| reply["id"].as_str().unwrap());
    assert_eq!(ends.collect::<Vec<_>>(), ["a", "b", "c", "d"]);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs llama-server: cargo xtask llama test"]
async fn a_gpu_without_memory_is_asked_for_less_and_then_left_alone() {
    for (lasts, placement, ubatch, lost) in [(64, "Vulkan0 + CPU", 64, 3), (0, "CPU", 512, 5)] {
        let stand = Stand::with_gpu(lasts).await;
        // The first request is answered all the same.
        assert!(!stand.generate(QUESTIONS[0].0, 4).await.unwrap().is_empty());
        let model = stand.model().await;
        assert_eq!((model.placement().await.unwrap().as_str(), model.context().await.unwrap().1), (placement, ubatch));
        let reason = model.reason().await.unwrap();
        assert!(reason.contains("memory is used up") && reason.contains("ErrorOutOfDeviceMemory"), "{reason}");
        assert_eq!(stand.device().await.counters().await.unwrap()["servers-lost"], lost);
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs llama-server: cargo xtask llama test"]
async fn a_client_that_never_reads_blocks_nobody_and_is_told() {
    let stand = Stand::start("stream-buffer-bytes = 64\n").await;
    let (job, pipe) = stand.begin(STORY, 4000, &[("deadline-ms", Variant::U64(600_000))]).await.unwrap();
    let other = stand.generate(QUESTIONS[0].0, 4).await;
    let error = stand.end_of(&job).await.unwrap_err();
    assert!(error.contains("does not read its pipe"), "{error}");
    assert!(!other.unwrap().is_empty());
    drop(pipe);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs llama-server: cargo xtask llama test"]
async fn a_model_that_is_too_large_is_refused_with_numbers() {
    let stand = Stand::start("memory-limit-mib = 100\n").await;
    // Already the one in the folder was left out.
    assert!(stand.models().await.list_models(Default::default()).await.unwrap().is_empty());
    let error = stand.load(&stand::model()).await.unwrap_err();
    assert!(error.contains("org.cairn.Error.OutOfMemory") && error.contains("100 MiB are available"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs llama-server: cargo xtask llama test"]
async fn a_broken_file_is_refused_with_what_is_wrong() {
    let stand = Stand::start("").await;
    let folder = tempfile::tempdir().unwrap();
    let broken = folder.path().join("broken.gguf");
    let bytes = std::fs::read(stand::model()).unwrap();
    std::fs::write(&broken, &bytes[..bytes.len() / 2]).unwrap();
    let error = stand.load(&broken).await.unwrap_err();
    assert!(error.contains("org.cairn.Error.Unsupported") && error.contains("outside the file"), "{error}");
    std::fs::write(&broken, b"GGML").unwrap();
    let error = stand.load(&broken).await.unwrap_err();
    assert!(error.contains("does not begin with GGUF"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs llama-server: cargo xtask llama test"]
async fn whoever_polkit_does_not_know_loads_nothing() {
    let stand = Stand::start("").await;
    let _polkit = stand.polkit(false).await;
    let path = stand::model();
    let error = stand.models().await.load_model(path.to_str().unwrap(), Default::default()).await.unwrap_err();
    assert!(error.to_string().contains("AccessDenied"), "{error}");
    let error = stand.models().await.unload_model("smollm2", Default::default()).await.unwrap_err();
    assert!(error.to_string().contains("AccessDenied"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs llama-server: cargo xtask llama test"]
async fn bad_requests_have_names() {
    let stand = Stand::start("").await;
    let generate = stand.generation().await;
    for (messages, options, words) in [
        (vec![], vec![], "0 messages"),
        (vec![("judge", "x")], vec![], "role \"judge\""),
        (vec![("user", "x")], vec![("colour", Variant::U32(1))], "unknown option \"colour\""),
        (vec![("user", "x")], vec![("temperature", Variant::U32(1))], "wrong type"),
        (vec![("user", "x")], vec![("temperature", Variant::F64(-1.0))], "temperature"),
    ] {
        let error = generate.generate(&messages, options.into_iter().collect()).await.unwrap_err().to_string();
        assert!(error.contains("InvalidArgs") && error.contains(words), "{error}");
    }
    for (path, body, code) in [
        ("/v1/chat/completions", json!({"model": "none", "messages": []}), (404, "UnknownModel")),
        ("/v1/chat/completions", json!({"messages": []}), (400, "InvalidArgs")),
        ("/v1/chat/completions", json!({"model": "smollm2", "messages": "x"}), (400, "InvalidArgs")),
        ("/v1/nothing", json!({}), (404, "Unsupported")),
    ] {
        let (status, answer) = stand.post(path, &body).await;
        assert_eq!((status, error_of(&answer).as_str()), code, "{path} {body}: {answer}");
    }
    // A prompt that is longer than the context.
    let (status, answer) = stand.post("/v1/chat/completions", &chat(&"word ".repeat(3000), 4)).await;
    assert_eq!((status, error_of(&answer).as_str()), (400, "InvalidArgs"), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs llama-server: cargo xtask llama test"]
async fn every_live_object_is_as_its_contract_says_and_idle_models_are_unloaded() {
    let stand = Stand::start("idle-seconds = 1\n").await;
    let (job, _pipe) = stand.begin(QUESTIONS[0].0, 4, &[]).await.unwrap();
    stand.end_of(&job).await.unwrap();
    let paths =
        [GPU_ROOT, GPU_DEVICE, language_model_path("smollm2").as_str(), job.inner().path().as_str()].map(str::to_owned);
    let compared = stand.compare_with_contracts(&paths).await;
    let expected = ["Device1", "Job1", "LanguageModel1", "Models1", "TextGeneration1"];
    assert_eq!(compared, expected.map(|name| format!("org.cairn.{name}")), "at {GPU_NAME}");
    let model = stand.model().await;
    stand.until(async || model.state().await.unwrap() == "idle").await;
    assert!(!stand.generate(QUESTIONS[0].0, 4).await.unwrap().is_empty());
}
