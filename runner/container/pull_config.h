// The login for one pull: a private folder with the credentials that the launcher has sent, for the
// engine's client alone and only while it runs. Should the runner be killed, the client's keeper
// removes it.
#pragma once

#include <string>
#include <vector>

#include "runner/cleanup/run_folder.h"
#include "runner/container/engine.h"

namespace sortie::runner::container {

class PullConfig {
 public:
  /// `credentials` is a Docker config.json; empty: the host's own login is used and nothing is
  /// made. Error: the engine takes none, or it is no JSON.
  static Result<PullConfig> make(Engine engine, const std::string& credentials);
  PullConfig() = default;
  PullConfig(PullConfig&&) = default;
  PullConfig& operator=(PullConfig&&) = default;
  ~PullConfig() { folder_.remove(); }

  /// "NAME=value", for the client.
  const std::vector<std::string>& variables() const { return variables_; }
  const std::string& folder() const { return folder_.path(); }

 private:
  RunFolder folder_;
  std::vector<std::string> variables_;
};

}  // namespace sortie::runner::container
