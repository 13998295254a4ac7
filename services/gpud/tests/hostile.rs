//! The daemon among clients that are broken or mean. None of them needs a model.

#[allow(dead_code, reason = "other tests use the rest")]
mod stand;

use std::io::Write as _;
use std::net::TcpStream;

use serde_json::{Value, json};
use stand::{Stand, error_of};

const CHATS: &str = "/v1/chat/completions";

/// A request with a body, as text.
fn post(headers: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("POST {CHATS} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}\r\n");
    [head.as_bytes(), body].concat()
}

fn sized(body: &[u8]) -> Vec<u8> {
    post(&format!("Content-Length: {}\r\n", body.len()), body)
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_are_wrong_in_any_way_are_refused_by_name() {
    let stand = Stand::empty().await;
    let deep = format!(r#"{{"model": {}1{}}}"#, "[".repeat(100_000), "]".repeat(100_000));
    let padding = format!("X: {}\r\n", "x".repeat(500_000));
    for (request, status, code) in [
        (sized(b"\xff\xfe"), 400, "InvalidArgs"),
        (sized(b"{\"model\": \"\xc3\x28\"}"), 400, "InvalidArgs"),
        (sized(deep.as_bytes()), 400, "InvalidArgs"),
        (sized(&vec![b' '; (4 << 20) + 1]), 400, "InvalidArgs"),
        (sized(br#"{"model": "m", "model": "none", "colour": [{}]}"#), 404, "UnknownModel"),
        (post("Transfer-Encoding: chunked\r\n", b"zz\r\n"), 400, "InvalidArgs"),
        (post("Origin: https://example.org\r\nContent-Length: 2\r\n", b"{}"), 401, "AccessDenied"),
        (post("Content-Length: 1\r\nContent-Length: 2\r\n", b"{}"), 400, ""),
        (post("Content-Length: -1\r\n", b""), 400, ""),
        (post(&padding, b""), 431, ""),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec(), 400, ""),
        (b"DELETE /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".to_vec(), 404, "Unsupported"),
    ] {
        let begin = String::from_utf8_lossy(&request[..request.len().min(200)]).into_owned();
        let answer = stand.raw(request).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{begin}: {answer}");
        let body = answer.split_once("\r\n\r\n").unwrap().1;
        match code {
            "" => assert_eq!(body, "", "{begin}"),
            code => assert_eq!(error_of(&serde_json::from_str(body).unwrap()), code, "{begin}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_say_nothing_or_half_keep_nobody_out() {
    let stand = Stand::empty().await;
    let address = stand.url().strip_prefix("http://").unwrap();
    let mut silent: Vec<_> = (0..48).map(|_| TcpStream::connect(address).unwrap()).collect();
    for client in &mut silent[..24] {
        client.write_all(&post("Content-Length: 100\r\n", b"{")).unwrap();
    }
    // Some of them give up.
    silent.truncate(36);
    let (status, answer) = stand.post(CHATS, &json!({"model": "none"})).await;
    assert_eq!((status, error_of(&answer).as_str()), (404, "UnknownModel"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_over_mqtt_is_answered_request_by_request() {
    let stand = Stand::empty().await;
    let mut requests: Vec<String> =
        (0..100).map(|id| json!({"id": id.to_string(), "messages": []}).to_string()).collect();
    requests.extend(["{", "[]", "\u{fffd}", r#"{"messages": 1}"#].map(str::to_owned));
    let replies = stand.replies("none", &requests, requests.len()).await;
    let codes = replies.iter().map(|reply| reply["error"]["code"].as_str().unwrap());
    assert_eq!(codes.filter(|code| *code == "InvalidArgs").count(), requests.len());
    let named = replies.iter().filter(|reply| reply["id"] != Value::Null).count();
    assert_eq!((replies.len(), named), (requests.len(), 100));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_daemon_gives_way_to_the_first() {
    let stand = Stand::empty().await;
    let reason = stand.second().await;
    assert!(reason.contains("own the bus name org.cairn.Gpu1"), "{reason}");
    assert_eq!(stand.device().await.queue_depth().await.unwrap(), 0);
}
