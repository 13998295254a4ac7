//! Any topic and any bytes as an MQTT request: the decoder must refuse or return a frame whose tensors fit their shapes.
//!
//! The input is: a byte that chooses content type and header length, the topic up to a zero byte, the payload.
#![no_main]

use api::mqtt::{Address, Form, FrameBody, JSON, OCTET_STREAM, Topics, decode_request, envelope};
use bytes::Bytes;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((&choice, rest)) = bytes.split_first() else { return };
    let (topic, payload) = match rest.iter().position(|&byte| byte == 0) {
        Some(end) => (&rest[..end], &rest[end + 1..]),
        None => (&[][..], rest),
    };
    let topics = Topics::new("d").expect("the name is a topic level");
    if let Ok(topic) = std::str::from_utf8(topic)
        && let Some(Address::Infer(model) | Address::Pool(model)) = topics.parse(topic)
    {
        assert!(api::mqtt::is_segment(model));
    }
    let content_type = [None, Some("image/png"), Some(JSON), Some(OCTET_STREAM)][usize::from(choice & 3)];
    let header = usize::from(choice >> 2) * payload.len() / 60;
    let Ok(form) = Form::of(content_type, Some(&header.to_string()), payload) else { return };
    envelope(form, payload);
    let Ok(frame) = decode_request(form, &Bytes::copy_from_slice(payload)) else { return };
    if let FrameBody::Tensors(tensors) = frame.body {
        for tensor in tensors {
            let elements: usize = tensor.shape().iter().product();
            assert_eq!(elements * tensor.datatype().bytes(), tensor.data().len());
        }
    }
});
