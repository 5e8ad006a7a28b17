// The parser of ssh_config files, the settings derived from them, and their helpers. No network.
#include <doctest/doctest.h>
#include <fmt/core.h>

#include "launcher/ssh/base64.h"
#include "launcher/ssh/host_settings.h"
#include "launcher/ssh/known_hosts.h"
#include "launcher/ssh/pattern.h"
#include "launcher/ssh/ssh_config.h"
#include "tests/support/child.h"
#include "tests/support/temp_dir.h"

using namespace sortie;
using namespace sortie::launcher::ssh;
using sortie::launcher::base64_decode;
using sortie::launcher::base64_encode;
using namespace sortie::testing;

namespace {

struct Files {
  Files() {
    std::filesystem::create_directories(folder / ".ssh");
    environment.home = folder.path();
    environment.user = "me";
  }
  void write(const std::string& name, const std::string& text) {
    std::filesystem::create_directories((folder / ".ssh" / name).parent_path());
    write_text(folder / ".ssh" / name, text);
  }
  HostConfig lookup(const std::string& host) {
    auto config = SshConfigReader(environment, "").lookup(host);
    REQUIRE_MESSAGE(config, (config ? "" : config.error().message));
    return *config;
  }
  HostSettings settings(const std::string& host, const config::SshConfig& ssh = {},
                        bool is_jump = false) {
    auto spec = parse_host_spec(host);
    REQUIRE(spec);
    auto made = make_host_settings(*spec, ssh, lookup(spec->host), environment, is_jump);
    REQUIRE_MESSAGE(made, (made ? "" : made.error().message));
    return *made;
  }
  TempDir folder;
  UserEnvironment environment;
};

}  // namespace

TEST_SUITE("launcher") {
  TEST_CASE("patterns") {
    CHECK(matches_pattern("gpu-01", "gpu-*"));
    CHECK(matches_pattern("gpu-01", "GPU-??"));
    CHECK_FALSE(matches_pattern("gpu-001", "gpu-??"));
    CHECK(matches_pattern("", "*"));
    CHECK_FALSE(matches_pattern("", "?"));
    CHECK(matches_pattern("a.b.c", "*.*.c"));
    const std::string many(60, 'a');
    CHECK_FALSE(matches_pattern(many, "*a*a*a*a*a*a*a*a*a*b"));
    CHECK(matches_pattern_list("web1", std::vector<std::string>{"*", "!db*"}));
    CHECK_FALSE(matches_pattern_list("db1", std::vector<std::string>{"*", "!db*"}));
    CHECK_FALSE(matches_pattern_list("db1", std::vector<std::string>{"!web*"}));
  }

  TEST_CASE("the first value wins, IdentityFile adds up") {
    Files files;
    files.write("config",
                "# comment\n"
                "Host web*\n"
                "  User alice\n"
                "  IdentityFile ~/.ssh/web\n"
                "Host *\n"
                "\tUser=bob\n"
                "  port = 2222\n"
                "  IdentityFile \"~/.ssh/all keys\"\n"
                "  HostName %h.example.org   # trailing\n");
    const auto web = files.lookup("web1");
    CHECK(web.user == "alice");
    CHECK(web.port == 2222);
    CHECK(web.identity_files == std::vector<std::string>{"~/.ssh/web", "~/.ssh/all keys"});
    CHECK(files.lookup("db").user == "bob");
    const auto settings = files.settings("db");
    CHECK(settings.host_name == "db.example.org");
    CHECK(settings.key_name == "[db.example.org]:2222");
    CHECK(settings.identity_files.front() == files.folder / ".ssh/all keys");
  }

  TEST_CASE("IdentitiesOnly is yes or no, or true or false as in ssh") {
    Files files;
    files.write("config",
                "Host a\n IdentitiesOnly true\nHost b\n IdentitiesOnly YES\n"
                "Host c\n IdentitiesOnly false\nHost *\n IdentitiesOnly yes\n");
    CHECK(files.lookup("a").identities_only);
    CHECK(files.lookup("b").identities_only);
    CHECK_FALSE(files.lookup("c").identities_only);
    CHECK(files.lookup("d").identities_only);
  }

  TEST_CASE("values before any Host line hold for all hosts, negation excludes") {
    Files files;
    files.write("config", "User early\nHost * !special\n  Port 99\n");
    CHECK(files.lookup("x").port == 99);
    CHECK(files.lookup("special").port == 0);
    CHECK(files.lookup("special").user == "early");
  }

  TEST_CASE("Match: all and host are evaluated, anything else does not apply") {
    Files files;
    files.write("config",
                "Host alias\n  HostName real.example\n"
                "Match host real.example\n  User matched\n"
                "Match host real.*,other exec \"true\"\n  Port 1\n"
                "Match user root\n  Port 2\n"
                "Match originalhost alias\n  HostKeyAlias k\n"
                "Match all\n  Port 3\n");
    const auto config = files.lookup("alias");
    CHECK(config.user == "matched");
    CHECK(config.port == 3);
    CHECK(config.host_key_alias == "k");
    CHECK(files.lookup("else").user == "");
  }

  TEST_CASE("Include: globs, relative to ~/.ssh, inside blocks, and back to the block after it") {
    Files files;
    files.write("config",
                "Include conf.d/*.conf\n"
                "Host inside\n  Include extra\n  Port 5\n"
                "Host *\n  User last\n");
    files.write("conf.d/a.conf", "Host a\n  User from-a\n");
    files.write("conf.d/b.conf", "Host b\n  User from-b\n");
    files.write("conf.d/c.txt", "User wrong\n");
    files.write("extra", "User from-extra\nHost nobody\n  Port 4\n");
    CHECK(files.lookup("a").user == "from-a");
    CHECK(files.lookup("b").user == "from-b");
    CHECK(files.lookup("inside").user == "from-extra");
    CHECK(files.lookup("inside").port == 5);
    CHECK(files.lookup("nobody").port == 0);
    CHECK(files.lookup("z").user == "last");
  }

  TEST_CASE("bad config files: file and line, and what to do") {
    Files files;
    const auto error = [&](const std::string& text) {
      files.write("config", text);
      const auto config = SshConfigReader(files.environment, "").lookup("h");
      REQUIRE_FALSE(config);
      CHECK(config.error().code == ErrorCode::config);
      const std::string where = (files.folder / ".ssh/config").string();
      std::string message = config.error().message;
      const auto at = message.find(where);
      REQUIRE(at != std::string::npos);
      return message.substr(at + where.size());
    };
    CHECK(error("\nPort 70000\n") == ":2: Port '70000' is not a port; use 1 to 65535");
    CHECK(error("Port x\n") == ":1: Port 'x' is not a port; use 1 to 65535");
    CHECK(error("IdentitiesOnly maybe\n") ==
          ":1: IdentitiesOnly 'maybe' is unknown; use yes or no");
    CHECK(error("User\n") == ":1: user has no value; give it one or remove the line");
    CHECK(error("User \"x\n") == ":1: a quote is not closed; add the closing quote");
    CHECK(error("Include config\n").starts_with(":1: Include goes deeper than 16 files"));
    const auto missing = SshConfigReader(files.environment, "/nonexistent/config").lookup("h");
    REQUIRE_FALSE(missing);
    CHECK(missing.error().message.starts_with("runner.ssh.config_file: /nonexistent/config: "));
  }

  TEST_CASE("runner.ssh wins over the files, and is not for jump hosts") {
    Files files;
    files.write("config", "Host *\n  User filed\n  Port 11\n  UserKnownHostsFile ~/k1 ~/k2\n");
    config::SshConfig ssh;
    ssh.user = "told";
    ssh.port = 12;
    ssh.identity_file = "~/told_key";
    ssh.known_hosts_file = "~/told_hosts";
    const auto target = files.settings("h", ssh);
    CHECK(target.address() == "told@h:12");
    CHECK(target.identity_files == std::vector<std::filesystem::path>{files.folder / "told_key"});
    CHECK(target.known_hosts_files.front() == files.folder / "told_hosts");
    const auto jump = files.settings("u@h:13", ssh, true);
    CHECK(jump.address() == "u@h:13");
    CHECK(files.settings("h", ssh, true).address() == "filed@h:11");
    const auto plain = files.settings("h");
    CHECK(plain.known_hosts_files ==
          std::vector<std::filesystem::path>{files.folder / "k1", files.folder / "k2"});
    CHECK_FALSE(plain.identities_named);
    CHECK(plain.identity_files.size() == 3);
  }

  TEST_CASE("jumps: lists, none, not through itself, and the old spelling of ProxyCommand") {
    Files files;
    files.write("config",
                "Host direct\n  ProxyJump none\n"
                "Host old\n  ProxyCommand ssh -q -W %h:%p gate\n"
                "Host odd\n  ProxyCommand nc %h %p\n"
                "Host *\n  ProxyJump bob@gate:2200,inner\n");
    CHECK(files.settings("x").jumps == std::vector<std::string>{"bob@gate:2200", "inner"});
    CHECK(files.settings("direct").jumps.empty());
    CHECK(files.settings("inner").jumps.empty());
    CHECK(files.settings("old").jumps == std::vector<std::string>{"gate"});
    const auto odd =
        make_host_settings({"", "odd", 0}, {}, files.lookup("odd"), files.environment, false);
    REQUIRE_FALSE(odd);
    CHECK(odd.error().code == ErrorCode::config);
    CHECK(odd.error().message.find("config:6: ProxyCommand is not supported") != std::string::npos);
  }

  TEST_CASE("tokens in ProxyJump are those of the host, as in ssh") {
    Files files;
    files.write("config",
                "Host other\n  HostName %h.example\n  User ada\n  ProxyJump %r@gate-%n,in-%h:%p\n"
                "Host old\n  ProxyCommand ssh -W %h:%p %r@gate-%n\n"
                "Host self\n  ProxyJump %h\n"
                "Host zone\n  ProxyJump [fe80::1%eth0]\n");
    CHECK(files.settings("other").jumps ==
          std::vector<std::string>{"ada@gate-other", "in-other.example:22"});
    CHECK(files.settings("old").jumps == std::vector<std::string>{"me@gate-old"});
    CHECK(files.settings("self").jumps.empty());
    CHECK(files.settings("zone").jumps == std::vector<std::string>{"[fe80::1%eth0]"});
  }

  TEST_CASE("tokens and variables in paths: the alias, this machine, the environment") {
    Files files;
    files.environment.this_host = "desk.example";
    files.environment.variables["SORTIE_TEST_FOLDER"] = "/of/variable";
    files.write("config",
                "Host aliased\n  HostKeyAlias farm\n"
                "Host old\n  IdentityAgent $SORTIE_TEST_FOLDER\n"
                "Host unset\n  IdentityAgent $SORTIE_TEST_UNSET\n"
                "Host broken\n  IdentityFile ${SORTIE_TEST_UNSET}/key\n"
                "Host *\n"
                "  HostName %h.example\n"
                "  IdentityFile ~/.ssh/%L/%l/%r\n"
                "  UserKnownHostsFile ~/known.d/%k ${SORTIE_TEST_FOLDER}/%n-%h-%p-%%\n"
                "  IdentityAgent ${SORTIE_TEST_FOLDER}/%u\n");
    using Paths = std::vector<std::filesystem::path>;
    const auto plain = files.settings("Node");
    CHECK(plain.identity_files == Paths{files.folder / ".ssh/desk/desk.example/me"});
    CHECK(plain.known_hosts_files ==
          Paths{files.folder / "known.d/Node", "/of/variable/Node-node.example-22-%"});
    CHECK(plain.agent_socket == "/of/variable/me");
    CHECK(files.settings("aliased").known_hosts_files.front() == files.folder / "known.d/farm");
    CHECK(files.settings("old").agent_socket == "/of/variable");
    CHECK(files.settings("unset").agent_socket.empty());
    const auto broken =
        make_host_settings({"", "broken", 0}, {}, files.lookup("broken"), files.environment, false);
    REQUIRE_FALSE(broken);
    CHECK(broken.error().code == ErrorCode::config);
    CHECK(broken.error().message.starts_with(
        "IdentityFile ${SORTIE_TEST_UNSET}/key: ${SORTIE_TEST_UNSET} is not set; "));
  }

  TEST_CASE("host specs") {
    const auto spec = parse_host_spec("me@[fe80::1]:2022");
    REQUIRE(spec);
    CHECK(spec->user == "me");
    CHECK(spec->host == "fe80::1");
    CHECK(spec->port == 2022);
    CHECK(parse_host_spec("::1")->host == "::1");
    CHECK(parse_host_spec("h")->port == 0);
    for (const char* bad : {"", "@h", "h:", "h:0", "h:70000", "h:2x", "[::1", "[::1]x", "[::1]:"}) {
      CAPTURE(bad);
      CHECK_FALSE(parse_host_spec(bad));
    }
  }

  TEST_CASE("known_hosts: what an entry covers and what a check says") {
    TempDir folder;
    const std::string a = base64_encode("blob-a"), b = base64_encode("blob-b");
    write_text(folder / "kh", fmt::format("one,two ssh-ed25519 {}\n"
                                          "garbage\n"
                                          "*.farm,!bad.farm ssh-rsa {}\n"
                                          "@cert-authority * ssh-ed25519 {}\n"
                                          "[one]:2222 ssh-ed25519 {}",
                                          a, b, a, b));
    KnownHosts hosts;
    REQUIRE(hosts.load({folder / "missing", folder / "kh"}));
    using enum HostKeyVerdict;
    const auto verdict = [&](const char* name, const char* type, const char* blob) {
      return hosts.check(name, {type, blob}).verdict;
    };
    CHECK(verdict("one", "ssh-ed25519", "blob-a") == known);
    CHECK(verdict("ONE", "ssh-ed25519", "blob-a") == known);
    CHECK(verdict("two", "ssh-ed25519", "blob-b") == changed);
    CHECK(verdict("two", "ssh-rsa", "blob-b") == other_type);
    CHECK(verdict("three", "ssh-ed25519", "blob-a") == unknown);
    CHECK(verdict("x.farm", "ssh-rsa", "blob-b") == known);
    CHECK(verdict("bad.farm", "ssh-rsa", "blob-b") == unknown);
    CHECK(verdict("[one]:2222", "ssh-ed25519", "blob-b") == known);
    CHECK(hosts.check("two", {"ssh-ed25519", "x"}).place == (folder / "kh").string() + ":1");
    CHECK(hosts.key_types("x.farm") == std::vector<std::string>{"ssh-rsa"});
    // A host at another port may be known without it; a key of port 22 does not contradict.
    const auto at_port = [&](const char* port, const char* name, const char* blob) {
      return hosts.check(port, name, {"ssh-ed25519", blob}).verdict;
    };
    CHECK(at_port("[two]:2222", "two", "blob-a") == known);
    CHECK(at_port("[two]:2222", "two", "blob-b") == unknown);
    CHECK(at_port("[two]:2222", "", "blob-a") == unknown);
    CHECK(at_port("[one]:2222", "one", "blob-a") == changed);
    // The record gets a separate line although the file does not end with a newline, and is found.
    REQUIRE(record_host_key(folder / "kh", "three", {"ssh-ed25519", "blob-c"}));
    REQUIRE(hosts.load({folder / "kh"}));
    CHECK(verdict("three", "ssh-ed25519", "blob-c") == known);
    CHECK(verdict("[one]:2222", "ssh-ed25519", "blob-b") == known);
  }

  TEST_CASE("base64 both ways") {
    for (const std::string text : {"a", "ab", "abc", "abcd"})
      CHECK(base64_decode(base64_encode(text)) == text);
    CHECK(base64_decode("not base64!") == "");
    CHECK(base64_decode("AAA") == "");
  }
}
