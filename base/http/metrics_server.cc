// SPDX-License-Identifier: Apache-2.0
#include "base/http/metrics_server.h"

#include <utility>

#include "absl/time/clock.h"

namespace terrace {
namespace {

// Asks for the text only so often, however often it is scraped: what it is made of belongs to a
// loop that has other things to do. Used only on the server's thread.
class Kept {
 public:
  explicit Kept(MetricsText text) : text_(std::move(text)) {}

  const std::string& Get() {
    const absl::Time now = absl::Now();
    const bool fresh = now >= made_ && now - made_ < kMetricsTextKept;
    if (kept_.empty() || !fresh) {
      kept_ = text_();
      made_ = now;
    }
    return kept_;
  }

 private:
  const MetricsText text_;
  std::string kept_;
  absl::Time made_ = absl::InfinitePast();
};

HttpResponse Answer(const HttpRequest& request, Kept& text) {
  if (request.path != "/metrics") return {.code = 404, .body = "GET /metrics\n"};
  if (request.method != "GET") return {.code = 405, .body = "GET /metrics\n"};
  return {.content_type = "text/plain; version=0.0.4; charset=utf-8", .body = text.Get()};
}

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> ServeMetrics(HttpListen listen, MetricsText text) {
  listen.option = "--metrics-listen";
  listen.insecure_option = "--metrics-insecure";
  listen.readers = "everybody may read metrics";
  return HttpServer::Start(
      // shared_ptr: a handler is copied.
      listen, [text = std::make_shared<Kept>(std::move(text))](const HttpRequest& request,
                                                               const HttpServer::Reply& reply) {
        reply(Answer(request, *text));
      });
}

}  // namespace terrace
