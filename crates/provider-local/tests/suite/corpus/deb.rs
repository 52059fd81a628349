//! A package manager inside: where a template makes the workload root of its own user namespace, a local package installs
//! as it would on a machine of one's own.

use sandbar_api::User;
use sandbar_provider::{
    Spec,
    suite::{Case, Running},
};

use super::{inside, is_visible, spec, succeeded};
use crate::Home;

const INSTALL: &str = r#"
mkdir -p made/DEBIAN made/usr/local/bin made/etc/corpus
printf 'Package: corpus-made\nVersion: 1.2\nArchitecture: all\nMaintainer: nobody <nobody@example.com>\nDescription: made here\n' >made/DEBIAN/control
printf '#!/bin/sh\ngetent group corpus >/dev/null || groupadd --system corpus\nchown root:corpus /etc/corpus\n' >made/DEBIAN/postinst
printf '#!/bin/sh\necho made here\n' >made/usr/local/bin/corpus-made
chmod 755 made/DEBIAN/postinst made/usr/local/bin/corpus-made
dpkg-deb --build --root-owner-group made made.deb
[ "$(id -u)" = 0 ]
apt-get install -y --no-install-recommends ./made.deb
[ "$(corpus-made)" = "made here" ]
dpkg -l corpus-made | grep >/dev/null '^ii'
[ "$(stat -c %U:%G /etc/corpus)" = root:corpus ]
apt-get remove -y corpus-made
[ ! -e /usr/local/bin/corpus-made ]
"#;

pub(crate) fn cases() -> Vec<Case<Home>> {
    vec![Case { name: "apt_installs_a_local_deb", run: apt_installs_a_local_deb, not_here: || not_here() }]
}

fn not_here() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("only root can make somebody else root inside".into());
    }
    (!is_visible("apt-get") || !is_visible("dpkg-deb")).then(|| "this host has no apt".into())
}

fn apt_installs_a_local_deb(home: &Home) -> Running<'_> {
    Box::pin(async move {
        let spec = Spec { user: User::Root, ..spec("apt", "standard") };
        succeeded(&inside(home, &spec, INSTALL).await?)
    })
}
