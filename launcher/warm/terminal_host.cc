#include "launcher/warm/terminal_host.h"

#include <array>
#include <boost/asio/steady_timer.hpp>
#include <optional>
#include <string>
#include <utility>

#include "common/asio/task_group.h"
#include "common/asio/token.h"
#include "common/wire/frame.h"
#include "launcher/warm/terminal_words.h"

namespace sortie::launcher::warm {
namespace asio = boost::asio;
namespace {

struct Carried {
  Carried(const asio::any_io_executor& executor, std::shared_ptr<Client> with,
          std::shared_ptr<TerminalChannel> to, Traffic& counted)
      : client(std::move(with)),
        channel(std::move(to)),
        traffic(counted),
        outputs(executor),
        others(executor),
        turn(executor, Clock::time_point::max()) {}

  std::shared_ptr<Client> client;
  std::shared_ptr<TerminalChannel> channel;
  Traffic& traffic;
  TaskGroup outputs, others;
  asio::steady_timer turn;  // cancelled when a write to the client ends
  bool writing = false;
  std::optional<Error> failed;
};

/// Writes to the client, one write at a time.
asio::awaitable<void> tell_client(Carried& carried, std::string bytes) {
  const auto shared = std::make_shared<std::string>(std::move(bytes));
  while (carried.writing) co_await carried.turn.async_wait(kToken);
  carried.writing = true;
  co_await carried.client->write(shared);
  carried.writing = false;
  carried.turn.cancel();
  if (carried.client->gone()) carried.channel->close();
}

asio::awaitable<void> carry_output(Carried& carried, TerminalChannel::Output output) {
  const Record type = output == TerminalChannel::Output::out ? Record::data : Record::error_data;
  std::array<char, 16384> buffer;
  for (;;) {
    const auto count = co_await carried.channel->read_some(output, buffer);
    if (!count && !carried.failed) carried.failed = count.error();
    if (!count || *count == 0) co_return;
    carried.traffic.count(*count);
    std::string bytes = record(type, std::string_view(buffer.data(), *count));
    co_await tell_client(carried, std::move(bytes));
  }
}

/// Handles a word of the client. Returns false if it is invalid.
asio::awaitable<bool> hear_word(Carried& carried, wire::Frame frame) {
  if (frame.type == static_cast<std::uint8_t>(Word::input)) {
    carried.traffic.count(frame.payload.size());
    // If the write fails, the outputs end and report the error.
    co_await carried.channel->write(frame.payload);
    co_return true;
  }
  if (frame.type == static_cast<std::uint8_t>(Word::end_of_input)) {
    carried.channel->end_input();
    co_return true;
  }
  if (frame.type != static_cast<std::uint8_t>(Word::resize)) co_return false;
  const auto size = read_resize(frame.payload);
  if (size) carried.channel->resize(*size);
  co_return size.has_value();
}

asio::awaitable<void> carry_input(Carried& carried) {
  wire::FrameDecoder decoder(kMaxWord);
  std::array<char, 16384> buffer;
  for (;;) {
    const std::size_t count = co_await carried.client->read_some(buffer);
    if (count == 0) break;
    decoder.feed(std::string_view(buffer.data(), count));
    bool good = true;
    while (good) {
      auto frame = decoder.next();
      good = frame.has_value();
      if (!good || !*frame) break;
      good = co_await hear_word(carried, std::move(**frame));
    }
    if (!good) break;
  }
  carried.channel->close();
}

/// Closes the session when the client is gone, even while carry_input() is blocked in a write.
asio::awaitable<void> watch_client(Carried& carried) {
  co_await carried.client->hung_up();
  carried.channel->close();
}

}  // namespace

asio::awaitable<void> carry_terminal(asio::any_io_executor executor, std::shared_ptr<Client> client,
                                     std::shared_ptr<TerminalChannel> channel, Traffic& traffic) {
  const auto carried = std::make_unique<Carried>(executor, client, std::move(channel), traffic);
  carried->others.spawn(carry_input(*carried));
  carried->others.spawn(watch_client(*carried));
  carried->outputs.spawn(carry_output(*carried, TerminalChannel::Output::out));
  carried->outputs.spawn(carry_output(*carried, TerminalChannel::Output::err));
  co_await carried->outputs.wait();
  Result<ProcessStatus> status = fail(ErrorCode::lost, "the connection is gone");
  if (carried->failed)
    status = std::unexpected(*carried->failed);
  else
    status = co_await carried->channel->wait();
  std::string last = status ? ended_record(*status) : failed_record(status.error());
  co_await tell_client(*carried, std::move(last));
  carried->channel->close();
  client->close();
  co_await carried->others.wait();
}

}  // namespace sortie::launcher::warm
