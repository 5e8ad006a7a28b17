// The login for one pull: a private folder with the credentials that the launcher sent, used only
// by the engine's client while it runs. If the runner is killed, the client's keeper removes it.
#pragma once

#include <string>
#include <vector>

#include "runner/cleanup/run_folder.h"
#include "runner/container/engine.h"

namespace sortie::runner::container {

class PullConfig {
 public:
  /// `credentials` is a Docker config.json. If it is empty, the host's own login is used and no
  /// folder is created. Error: the engine accepts no credentials, or they are malformed.
  static Result<PullConfig> make(Engine engine, const std::string& credentials);
  PullConfig() = default;
  PullConfig(PullConfig&&) = default;
  PullConfig& operator=(PullConfig&&) = default;
  ~PullConfig() { folder_.remove(); }

  /// "NAME=value" lines for the environment of the client.
  const std::vector<std::string>& variables() const { return variables_; }
  const std::string& folder() const { return folder_.path(); }

 private:
  RunFolder folder_;
  std::vector<std::string> variables_;
};

}  // namespace sortie::runner::container
