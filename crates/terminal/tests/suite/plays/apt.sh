# apt with a repository, a list of packages and a cache of its own, which downloads and installs nothing.
# dpkg takes no package whose control directory others may not read.
umask 022
place=$(mktemp -d) && cd "$place" || exit
mkdir -p etc/apt.conf.d etc/preferences.d state/lists/partial cache/archives/partial repo
: > status
for name in tide sand; do
  mkdir -p "made/$name/DEBIAN"
  printf 'Package: %s\nVersion: 1\nArchitecture: all\nMaintainer: Ada <ada@build.test>\nDescription: nothing\n' $name \
    > "made/$name/DEBIAN/control"
  [ $name = sand ] || echo 'Depends: sand' >> "made/$name/DEBIAN/control"
  dpkg-deb -b "made/$name" "repo/$name.deb" > /dev/null
  {
    cat "made/$name/DEBIAN/control"
    printf 'Filename: ./%s.deb\nSize: %s\n' $name "$(stat -c %s "repo/$name.deb")"
    printf 'SHA256: %s\n\n' "$(sha256sum < "repo/$name.deb" | cut -d ' ' -f 1)"
  } >> repo/Packages
done
echo "deb [trusted=yes] file:$place/repo ./" > etc/sources.list
cat > apt.conf <<END
Dir::Etc "$place/etc"; Dir::Etc::sourceparts "/dev/null"; Dir::Log "$place";
Dir::State "$place/state"; Dir::State::status "$place/status"; Dir::Cache "$place/cache"; APT::Sandbox::User "";
END
export APT_CONFIG=$place/apt.conf
apt-get update -qq && apt-get --download-only install tide
