#include "launcher/warm/request.h"

#include <nlohmann/json.hpp>

#include "common/base/json_text.h"
#include "common/wire/frame.h"

namespace sortie::launcher::warm {
namespace {

using Json = nlohmann::json;
using std::chrono::milliseconds;

constexpr const char* kKinds[] = {"want", "list", "close", "retire", "terminal"};

// Paths and names may be invalid UTF-8, so their bytes are encoded as Latin-1 characters.
std::string wide(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) {
    const auto code = static_cast<unsigned char>(c);
    if (code < 0x80) {
      out.push_back(c);
    } else {
      out.push_back(static_cast<char>(0xc0 | code >> 6));
      out.push_back(static_cast<char>(0x80 | (code & 0x3f)));
    }
  }
  return out;
}

std::string narrow(const std::string& text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto code = static_cast<unsigned char>(text[i]);
    if (code < 0x80 || i + 1 == text.size())
      out.push_back(text[i]);
    else
      out.push_back(static_cast<char>((code & 0x03) << 6 | (text[++i] & 0x3f)));
  }
  return out;
}

Json variables_json(const ssh::Variables& variables) {
  Json json = Json::object();
  for (const auto& [name, value] : variables) json[wide(name)] = wide(value);
  return json;
}

Json want_json(const Want& want) {
  const config::SshConfig& ssh = want.ssh;
  return {{"build", want.build},
          {"session", want.session},
          {"host", wide(want.host)},
          {"key", want.key},
          {"address", wide(want.address)},
          {"user", wide(ssh.user)},
          {"port", ssh.port},
          {"identity_file", wide(ssh.identity_file)},
          {"config_file", wide(ssh.config_file)},
          {"known_hosts_file", wide(ssh.known_hosts_file)},
          {"accept_new", ssh.accept_new},
          {"control", ssh.control},
          {"times",
           {ssh.resolve_timeout.count(), ssh.connect_timeout.count(), ssh.handshake_timeout.count(),
            ssh.auth_timeout.count(), ssh.persist.count(), want.heartbeat_timeout.count(),
            want.startup_timeout.count()}},
          {"fanout", ssh.fanout},
          {"home", wide(want.environment.home.native())},
          {"login", wide(want.environment.user)},
          {"agent", wide(want.environment.agent_socket)},
          {"this_host", wide(want.environment.this_host)},
          {"variables", variables_json(want.environment.variables)},
          {"system_config", wide(want.environment.system_config.native())},
          {"system_known_hosts", wide(want.environment.system_known_hosts.native())}};
}

Want read_want(const Json& json) {
  Want want;
  const auto text = [&](const char* key) { return narrow(json.at(key).get<std::string>()); };
  want.build = text("build");
  want.session = text("session");
  want.host = text("host");
  want.key = text("key");
  want.address = text("address");
  config::SshConfig& ssh = want.ssh;
  ssh.user = text("user");
  ssh.port = json.at("port").get<std::int64_t>();
  ssh.identity_file = text("identity_file");
  ssh.config_file = text("config_file");
  ssh.known_hosts_file = text("known_hosts_file");
  ssh.accept_new = json.at("accept_new").get<bool>();
  ssh.control = json.at("control").get<std::string>();
  const Json& times = json.at("times");
  const auto time = [&](std::size_t i) { return milliseconds(times.at(i).get<std::int64_t>()); };
  ssh.resolve_timeout = time(0);
  ssh.connect_timeout = time(1);
  ssh.handshake_timeout = time(2);
  ssh.auth_timeout = time(3);
  ssh.persist = time(4);
  want.heartbeat_timeout = time(5);
  want.startup_timeout = time(6);
  ssh.fanout = json.at("fanout").get<std::int64_t>();
  want.environment.home = text("home");
  want.environment.user = text("login");
  want.environment.agent_socket = text("agent");
  want.environment.this_host = text("this_host");
  for (const auto& [name, value] : json.at("variables").items())
    want.environment.variables[narrow(name)] = narrow(value.get<std::string>());
  want.environment.system_config = text("system_config");
  want.environment.system_known_hosts = text("system_known_hosts");
  return want;
}

std::unexpected<Error> garbled(const std::exception& why) {
  return fail(ErrorCode::protocol, std::string("warm connections: no such message: ") + why.what());
}

}  // namespace

std::string request_frame(const Request& request) {
  Json json = {{"op", kKinds[static_cast<std::size_t>(request.kind)]}};
  if (request.kind == Request::Kind::want || request.kind == Request::Kind::terminal)
    json["want"] = want_json(request.want);
  if (request.kind == Request::Kind::terminal)
    json["terminal"] = {{"command", wide(request.terminal.command)},
                        {"terminal", request.terminal.terminal},
                        {"term", wide(request.terminal.term)},
                        {"columns", request.terminal.size.columns},
                        {"rows", request.terminal.size.rows}};
  if (request.kind == Request::Kind::close) {
    json["hosts"] = Json::array();
    for (const std::string& host : request.hosts) json["hosts"].push_back(wide(host));
  }
  return wire::encode_frame(kRequestFrame, json_text(json));
}

Result<Request> read_request(const std::string& payload) try {
  const Json json = Json::parse(payload);
  const auto kind = json.at("op").get<std::string>();
  Request request;
  const auto* const known = std::ranges::find(kKinds, kind);
  if (known == std::end(kKinds))
    return fail(ErrorCode::protocol, "warm connections: no such request: " + kind);
  request.kind = static_cast<Request::Kind>(known - kKinds);
  if (request.kind == Request::Kind::want || request.kind == Request::Kind::terminal)
    request.want = read_want(json.at("want"));
  if (request.kind == Request::Kind::terminal) {
    const Json& terminal = json.at("terminal");
    request.terminal = {narrow(terminal.at("command").get<std::string>()),
                        terminal.at("terminal").get<bool>(),
                        narrow(terminal.at("term").get<std::string>()),
                        {terminal.at("columns").get<int>(), terminal.at("rows").get<int>()}};
  }
  if (request.kind == Request::Kind::close)
    for (const Json& host : json.at("hosts"))
      request.hosts.push_back(narrow(host.get<std::string>()));
  return request;
} catch (const Json::exception& error) {
  return garbled(error);
}

std::string record(Record type, std::string_view payload) {
  return wire::encode_frame(static_cast<std::uint8_t>(type), payload);
}

std::string ready_record(const Ready& ready) {
  return record(Record::ready, json_text(Json{{"address", wide(ready.address)},
                                              {"warm", ready.warm},
                                              {"names", ready.names},
                                              {"times", ready.times}}));
}

std::string failed_record(const Error& error) {
  return record(Record::failed, json_text(Json{{"code", static_cast<int>(error.code)},
                                               {"message", wide(error.message)}}));
}

std::string ended_record(const ProcessStatus& status) {
  return record(Record::ended,
                json_text(Json{{"kind", static_cast<int>(status.kind)}, {"code", status.code}}));
}

Result<Ready> read_ready(const std::string& payload) try {
  const Json json = Json::parse(payload);
  Ready ready;
  ready.address = narrow(json.at("address").get<std::string>());
  ready.warm = json.at("warm").get<bool>();
  ready.names = json.at("names").get<std::vector<std::string>>();
  ready.times = json.at("times").get<std::vector<std::int64_t>>();
  return ready;
} catch (const Json::exception& error) {
  return garbled(error);
}

Result<ProcessStatus> read_ended(const std::string& payload) try {
  const Json json = Json::parse(payload);
  return ProcessStatus{static_cast<ProcessStatus::Kind>(json.at("kind").get<int>()),
                       json.at("code").get<int>(), false};
} catch (const Json::exception& error) {
  return garbled(error);
}

Error read_failed(const std::string& payload) try {
  const Json json = Json::parse(payload);
  return {static_cast<ErrorCode>(json.at("code").get<int>()),
          narrow(json.at("message").get<std::string>())};
} catch (const Json::exception& error) {
  return garbled(error).error();
}

}  // namespace sortie::launcher::warm
