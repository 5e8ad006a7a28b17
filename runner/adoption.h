// Adoption: passes the connection of another launcher, or a new connection of the same one, to the
// runner that holds a job. The launcher starts a fresh runner. That runner finds the holder's Unix
// socket in the run folder and passes its two descriptors on. It stays until the holder is done,
// because sshd ties the channel to it.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/fd.h"
#include "common/base/result.h"
#include "common/wire/frame.h"
#include "common/wire/message.h"
#include "runner/streams/unix_listener.h"

namespace sortie::runner {

/// The holder's side: listens on "adopt.sock" in its run folder, 0600, for processes of this user
/// only.
class AdoptionListener {
 public:
  /// Takes over the connection. The error is the reason for a refusal.
  using OnOffer = std::function<Result<>(const wire::Adopt& adopt, Fd in, Fd out)>;

  AdoptionListener(boost::asio::io_context& io, OnOffer on_offer)
      : io_(io),
        listener_(io, [this](Fd fd) { take_client(std::move(fd)); }),
        on_offer_(std::move(on_offer)) {}
  Result<> open(const std::string& folder);

 private:
  struct Client {
    explicit Client(boost::asio::io_context& io) : stream(io) {}
    boost::asio::posix::stream_descriptor stream;
    wire::FrameDecoder decoder;
    std::vector<Fd> descriptors;
  };
  void take_client(Fd fd);
  void await_data(const std::shared_ptr<Client>& client);
  /// Returns false if nothing more is expected from this client.
  bool receive(const std::shared_ptr<Client>& client);
  bool offer(const std::shared_ptr<Client>& client, const wire::Frame& frame);

  boost::asio::io_context& io_;
  UnixListener listener_;
  OnOffer on_offer_;
  std::vector<std::shared_ptr<Client>> clients_;
  std::shared_ptr<Client>
      current_;  // its connection is in use; closing its stream tells it that we are done
};

/// The fresh runner's side: passes `in` and `out` to the holder of the job. ErrorCode::lost: there
/// is no holder; io: that could not be determined; other codes: it refuses. On success the returned
/// stream stays open until the holder is done.
boost::asio::awaitable<Result<Fd>> offer_connection(boost::asio::io_context& io, wire::Adopt adopt,
                                                    int in, int out);

}  // namespace sortie::runner
