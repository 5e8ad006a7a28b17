// `sortie image push` on a host: finds out what is missing of an image, and loads an archive of it.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "common/wire/container_messages.h"
#include "runner/container/image.h"
#include "runner/streams/link.h"

namespace sortie::runner::container {

class LoadRole {
 public:
  LoadRole(boost::asio::io_context& io, Link& link, const ProcessDefaults& defaults,
           std::function<void(Error)> on_failure)
      : io_(io), link_(link), calls_(io, defaults), on_failure_(std::move(on_failure)) {}

  /// Each order is answered, or on_failure is called. ErrorCode::protocol: another order is in
  /// progress, or the order is invalid.
  Result<> query(wire::ImageQuery order);
  Result<> load(wire::ImageLoad order);

 private:
  boost::asio::awaitable<void> answer(wire::ImageQuery order);
  boost::asio::awaitable<Result<wire::ImageLacking>> look(wire::ImageQuery order);
  boost::asio::awaitable<Result<std::uint32_t>> layers_here(Client client,
                                                            std::vector<std::string> diff_ids);
  boost::asio::awaitable<Result<std::string>> output_of(sortie::container::Argv argv);
  boost::asio::awaitable<void> carry_out(wire::ImageLoad order);
  boost::asio::awaitable<Result<wire::ImageReady>> load_now(wire::ImageLoad order);

  boost::asio::awaitable<void> say_that_it_works(std::string at);

  boost::asio::io_context& io_;
  Link& link_;
  EngineCalls calls_;
  std::function<void(Error)> on_failure_;
  bool busy_ = false;
  unsigned orders_ = 0;
};

/// Largest number of leading `diff_ids` that are also the lowest layers of one image in the output
/// of `docker image inspect`.
std::uint32_t common_layers(std::string_view inspected, const std::vector<std::string>& diff_ids);

}  // namespace sortie::runner::container
