// ControlMaster, ControlPath and ControlPersist as ssh reads them: values, tokens, %C, folders.
#include <doctest/doctest.h>
#include <fmt/core.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "common/base/host_name.h"
#include "launcher/ssh/control_settings.h"
#include "launcher/ssh/mux_start.h"
#include "launcher/ssh/mux_wire.h"
#include "launcher/ssh/ssh_config.h"
#include "tests/support/child.h"
#include "tests/support/temp_dir.h"

using namespace sortie;
using namespace sortie::launcher::ssh;
using namespace sortie::testing;

namespace {

struct ControlFiles {
  ControlFiles() {
    environment.home = ::getpwuid(::getuid())->pw_dir;
    environment.user = ::getpwuid(::getuid())->pw_name;
    environment.variables = UserEnvironment::from_process().variables;
    environment.this_host = host_name();
  }
  Result<ControlSettings> read(const std::string& host, const config::SshConfig& ssh = {},
                               bool is_jump = false) {
    auto files = SshConfigReader(environment, file.string()).lookup(host);
    if (!files) return std::unexpected(files.error());
    return make_control_settings({"", host, 0}, ssh, *files, environment, is_jump);
  }
  ControlSettings settings(const std::string& host, const config::SshConfig& ssh = {},
                           bool is_jump = false) {
    auto made = read(host, ssh, is_jump);
    REQUIRE_MESSAGE(made, (made ? "" : made.error().message));
    return *made;
  }
  void write(const std::string& text) { write_text(file, text); }
  // The value of a keyword according to the ssh of this machine.
  std::string by_ssh(const std::string& keyword, const std::vector<std::string>& more) {
    std::vector<std::string> words = {"ssh", "-G", "-F", file.string()};
    words.insert(words.end(), more.begin(), more.end());
    const std::string said = "\n" + run(words).output;
    const auto at = said.find("\n" + keyword + " ");
    if (at == said.npos) return "";
    const auto begin = at + keyword.size() + 2;
    return said.substr(begin, said.find('\n', begin) - begin);
  }
  bool has(const ControlSettings& control, const std::string& path) {
    return std::ranges::find(control.sockets, std::filesystem::path(path)) != control.sockets.end();
  }
  TempDir folder;
  std::filesystem::path file = folder / "config";
  UserEnvironment environment;
};

}  // namespace

TEST_SUITE("launcher") {
  TEST_CASE("ControlPath is what ssh itself makes of it") {
    ControlFiles files;
    for (const char* path :
         {"~/cm-%C", "/x/%r@%h:%p", "/x/%n-%k-%L-%l-%u-%i", "%d/a%%b", "/x/${HOME}/y"}) {
      files.write(
          fmt::format("Host Alias\n HostName Real.Example\n User ada\n Port 2222\n"
                      "Host keyed\n HostKeyAlias other\n"
                      "Host behind\n ProxyJump bob@gate:2200,u@inner\n"
                      "Host *\n ControlPath {}\n",
                      path));
      for (const char* host : {"Alias", "keyed", "behind", "Plain"}) {
        const std::string wanted = files.by_ssh("controlpath", {host});
        const auto control = files.settings(host);
        REQUIRE_FALSE(wanted.empty());
        CHECK_MESSAGE(files.has(control, wanted), path << " of " << host << ": " << wanted);
        CHECK(control.sockets.size() <= 2);
      }
      config::SshConfig told;
      told.user = "eve";
      told.port = 99;
      const std::string wanted = files.by_ssh("controlpath", {"-l", "eve", "-p", "99", "Alias"});
      CHECK(files.has(files.settings("Alias", told), wanted));
    }
  }

  TEST_CASE("%C: with the jump host's name as OpenSSH 9.6 and later hash it, and without") {
    ControlNames names;
    names.this_host = "bastion.example";
    names.host = "h";
    names.port = "22";
    names.user = "ada";
    names.jump_host = "gate";
    // sha1sum of "bastion.exampleh22ada", without and with "gate" appended.
    CHECK(connection_hash(names, false) == "fa388cdec03a0b4e273f99cb392cab4237f55dcd");
    CHECK(connection_hash(names, true) == "6fd3b4f02875003433438b8f5356e45645c741bc");
    names.jump_host.clear();
    CHECK(connection_hash(names, true) == connection_hash(names, false));
  }

  TEST_CASE("the first value wins, none is none, and what stays behind is made") {
    ControlFiles files;
    files.write(
        "Host plain\n ControlPath none\n"
        "Host stays\n ControlMaster auto\n ControlPersist 10m\n"
        "Host asks\n ControlMaster autoask\n ControlPersist yes\n"
        "Host zero\n ControlMaster yes\n ControlPersist 0\n"
        "Host goes\n ControlMaster auto\n"
        "Host *\n ControlPath /x/%n\n ControlMaster no\n ControlPersist no\n");
    CHECK(files.settings("plain").sockets.empty());
    CHECK(files.settings("stays").make);
    CHECK(files.settings("stays").persist == "10m");
    CHECK(files.settings("stays", {}, true).make);  // as a jump host
    CHECK_FALSE(files.settings("asks").make);
    CHECK(files.settings("zero").make);
    CHECK_FALSE(files.settings("goes").make);
    const auto other = files.settings("other");
    CHECK_FALSE(other.make);
    CHECK(other.sockets == std::vector<std::filesystem::path>{"/x/other"});
  }

  TEST_CASE("values that ssh refuses are errors with file and line") {
    ControlFiles files;
    const auto error = [&](const std::string& text) {
      files.write(text);
      const auto control = files.read("h");
      REQUIRE_FALSE(control);
      CHECK(control.error().code == ErrorCode::config);
      const std::string where = files.file.string();
      const auto at = control.error().message.find(where);
      REQUIRE(at != std::string::npos);
      return control.error().message.substr(at + where.size());
    };
    CHECK(error("\nControlMaster maybe\n") ==
          ":2: ControlMaster 'maybe' is not known; use yes, no, auto, ask or autoask");
    for (const char* bad : {"soon", "10x", "-1", "1h-", "99999999999"})
      CHECK(error(fmt::format("ControlPersist {}\n", bad)).starts_with(":1: ControlPersist '"));
    CHECK(
        error("User a\nControlPath /x/%Z\n").starts_with(":2: ControlPath: %Z is no token of it"));
    CHECK(error("ControlPath /x/${NO_SUCH_VARIABLE}\n").contains("${NO_SUCH_VARIABLE} is not set"));
    CHECK(error("ControlPath ~nobody-here/x\n").contains("there is no user nobody-here here"));
    for (const char* good : {"yes", "no", "0", "600", "1h30m", "2W"})
      CHECK(parse_control_persist(good));
  }

  TEST_CASE(
      "runner.ssh against a master: it is left alone where its path does not tell them apart") {
    ControlFiles files;
    config::SshConfig user, port, key, known;
    user.user = "eve";
    port.port = 99;
    key.identity_file = "~/.ssh/told";
    known.known_hosts_file = "/told";
    const auto left = [&](const config::SshConfig& ssh) {
      return !files.settings("h", ssh).left_alone.empty();
    };
    files.write("Host *\n ControlPath /x/%n\n");
    for (const auto* ssh : {&user, &port, &key, &known}) CHECK(left(*ssh));
    CHECK_FALSE(left({}));
    files.write("Host *\n ControlPath /x/%C\n");
    CHECK_FALSE(left(user));
    CHECK_FALSE(left(port));
    CHECK(left(key));
    files.write("Host *\n ControlPath /x/%r@%n\n");
    CHECK_FALSE(left(user));
    CHECK(left(port));
    files.write(
        "Host *\n ControlPath /x/%n\n User eve\n Port 99\n IdentityFile ~/.ssh/told\n"
        " UserKnownHostsFile /told\n");
    for (const auto* ssh : {&user, &port, &key, &known}) CHECK_FALSE(left(*ssh));
  }

  TEST_CASE("the folder of a socket: the user's, and nobody else may write there") {
    const TempDir folder;
    const auto check = [&] { return check_control_folder(folder / "socket"); };
    for (const ::mode_t mode : {0700u, 0755u}) {
      ::chmod(folder.path().c_str(), mode);
      CHECK(check());
    }
    for (const ::mode_t mode : {0777u, 0770u, 0722u}) {
      ::chmod(folder.path().c_str(), mode);
      REQUIRE_FALSE(check());
      CHECK(check().error().code == ErrorCode::config);
      CHECK(check().error().message.contains("writable by others"));
    }
    ::chmod(folder.path().c_str(), 0700);
    if (::geteuid() == 0) {
      REQUIRE(::chown(folder.path().c_str(), 12345, 12345) == 0);
      REQUIRE_FALSE(check());
      CHECK(check().error().message.contains("belongs to the user id 12345"));
      REQUIRE(::chown(folder.path().c_str(), 0, 0) == 0);
    }
    CHECK(check_control_folder("/tmp/socket"));  // sticky
    const auto missing = check_control_folder(folder / "no/socket");
    REQUIRE_FALSE(missing);
    CHECK(missing.error().code == ErrorCode::not_found);
  }

  TEST_CASE("what the ssh that makes a master is told") {
    config::SshConfig ssh;
    ssh.user = "ada";
    ssh.port = 2222;
    ssh.accept_new = true;
    const MasterOrder order{{"", "-oProxyCommand=x", 0}, "/x/50%-a", "10m", "/c", false};
    const auto words = master_words(ssh, order);
    CHECK(words.front() == "ssh");
    CHECK(words[words.size() - 2] == "--");
    CHECK(words.back() == "-oProxyCommand=x");
    for (const char* word : {"-N", "BatchMode=yes", "ControlMaster=auto", "ControlPersist=10m",
                             "ControlPath=\"/x/50%%-a\"", "StrictHostKeyChecking=accept-new", "-F",
                             "/c", "-l", "ada", "-p", "2222"})
      CHECK_MESSAGE(std::ranges::find(words, word) != words.end(), word);
    MasterOrder jump = order;
    jump.is_jump = true;
    for (const char* word : {"-l", "ada", "-p", "2222"})
      CHECK(std::ranges::count(master_words(ssh, jump), word) == 0);
    jump.host = {"eve", "jump", 23};
    const auto own = master_words(ssh, jump);
    for (const char* word : {"eve", "23"}) CHECK(std::ranges::find(own, word) != own.end());
  }

  TEST_CASE("messages of the mux protocol: what is cut off, too long or unknown is refused") {
    const std::string session = mux_new_session(2, "true");
    REQUIRE(mux_length(session.substr(0, 4)));
    CHECK(*mux_length(session.substr(0, 4)) == session.size() - 4);
    CHECK(mux_hello() == std::string("\0\0\0\x8\0\0\0\x1\0\0\0\x4", 12));
    CHECK_FALSE(mux_length(std::string("\0\0\0\3", 4)));
    CHECK_FALSE(mux_length("\x7f\xff\xff\xff"));
    const std::string failure("\x80\0\0\x3\0\0\0\x2\0\0\0\x2no", 14);
    const auto read = parse_mux_message(failure);
    REQUIRE(read);
    CHECK(read->type == MuxType::failure);
    CHECK(read->id == 2);
    CHECK(read->text == "no");
    for (std::size_t size = 0; size < failure.size(); ++size)
      CHECK_FALSE(parse_mux_message(std::string_view(failure).substr(0, size)));
    CHECK_FALSE(parse_mux_message(std::string("\x12\x34\x56\x78\0\0\0\0", 8)));
  }
}
