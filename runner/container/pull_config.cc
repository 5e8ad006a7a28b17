#include "runner/container/pull_config.h"

#include <fmt/core.h>
#include <unistd.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "common/base/atomic_file.h"

namespace sortie::runner::container {
namespace {

using Json = nlohmann::json;

/// The folder in which the client looks by default, "" if there is none.
std::string own_folder() {
  if (const char* folder = std::getenv("DOCKER_CONFIG"); folder && *folder) return folder;
  if (const char* home = std::getenv("HOME"); home && *home) return std::string(home) + "/.docker";
  return {};
}

/// The host's own settings (above all its context) with the logins replaced.
Result<std::string> merged(const std::string& own, const std::string& credentials) {
  const Json given = Json::parse(credentials, nullptr, false);
  if (!given.is_object() || !given.contains("auths") || !given["auths"].is_object())
    return fail(ErrorCode::config,
                "the credentials are not a Docker config.json with an object \"auths\"");
  Json result = Json::object();
  if (const auto text = read_file(own + "/config.json"); !own.empty() && text)
    if (Json settings = Json::parse(*text, nullptr, false); settings.is_object())
      result = std::move(settings);
  result.erase("credsStore");
  result.erase("credHelpers");
  result["auths"] = given["auths"];
  return result.dump();
}

}  // namespace

Result<PullConfig> PullConfig::make(Engine engine, const std::string& credentials) {
  PullConfig config;
  if (credentials.empty()) return config;
  if (engine == Engine::ctr)
    return fail(
        ErrorCode::unsupported,
        "ctr takes a registry's password only on its command line, where every user of this "
        "host can read it; install nerdctl");
  const std::string own = own_folder();
  SORTIE_ASSIGN_OR_RETURN(const std::string text, merged(own, credentials));
  SORTIE_ASSIGN_OR_RETURN(config.folder_, RunFolder::make(fmt::format("pull-{}", ::getpid())));
  SORTIE_TRY(config.folder_.write("config.json", text));
  const std::string& folder = config.folder_.path();
  if (!own.empty() && ::symlink((own + "/contexts").c_str(), (folder + "/contexts").c_str()) != 0)
    return std::unexpected(os_error(errno, folder));
  config.variables_ = {"DOCKER_CONFIG=" + folder, "REGISTRY_AUTH_FILE=" + folder + "/config.json"};
  return config;
}

}  // namespace sortie::runner::container
