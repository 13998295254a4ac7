//! What a D-Bus contract promises, to be compared with a live object.

use std::collections::{BTreeMap, BTreeSet};

/// Members of an interface, one line each: what a contract promises.
fn members(interface: &zbus_xml::Interface<'_>) -> BTreeSet<String> {
    let text = |args: &[zbus_xml::Arg]| {
        let arg = |arg: &zbus_xml::Arg| format!("{:?} {:?} {:?}", arg.direction(), arg.name(), arg.ty().to_string());
        args.iter().map(arg).collect::<Vec<_>>().join(", ")
    };
    let methods = interface.methods().map(|it| format!("method {} {}", it.name(), text(it.args())));
    let signals = interface.signals().map(|it| {
        let args: Vec<_> = it.args().iter().map(|arg| format!("{:?} {}", arg.name(), arg.ty())).collect();
        format!("signal {} {args:?}", it.name())
    });
    let properties = interface.properties().map(|it| {
        let emits = it.annotations().iter().find(|it| it.name().ends_with("EmitsChangedSignal"));
        let emits = emits.map_or("true", |it| it.value());
        format!("property {} {} {:?} {emits}", it.name(), it.ty(), it.access())
    });
    methods.chain(signals).chain(properties).collect()
}

/// The interfaces of an introspection document, and the members of each: two documents promise the same where these are
/// equal.
///
/// # Panics
/// Where it is no such document.
pub fn interfaces(xml: &str) -> BTreeMap<String, BTreeSet<String>> {
    let node = zbus_xml::Node::from_reader(xml.as_bytes()).expect("an introspection document");
    node.interfaces().iter().map(|interface| (interface.name().to_string(), members(interface))).collect()
}
