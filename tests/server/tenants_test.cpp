// Tenant files, callers and their limits, and the refusals that clients see.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>

#include "engine/retry_after.h"
#include "server/telemetry/metrics.h"
#include "server/tenants/api_keys.h"
#include "server/tenants/tenant_file.h"
#include "tests/server/fake_engine.h"
#include "tests/server/written_tenants.h"

namespace tessera {
namespace {

using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr char kFile[] = R"(
tenants:
  - name: search
    share: 3
    salt: a long random text
    priority-min: -2
    priority-max: 7
    pin-tokens: 4096
    requests-per-minute: 600
    tokens-per-minute: 100000
    keys:
      - name: search-prod
        key: key-of-search-production
        admin: true
      - name: search-dev
        # printf key-of-search-development | sha256sum
        key: sha256:)";
constexpr char kRest[] = R"(
  - name: batch
    keys: [{name: batch, key: key-of-the-batch-jobs}]
)";

std::string file() {
  std::string hex;
  for (const unsigned char byte : digest_of("key-of-search-development")) {
    char digits[3];
    std::snprintf(digits, sizeof(digits), "%02x", byte);
    hex += digits;
  }
  return kFile + hex + kRest;
}

TEST(TenantFile, GivesEachKeyItsTenantAndItsLimits) {
  const WrittenTenants written(file());
  const ApiKeys keys = ApiKeys::load(written.sources()).value();
  EXPECT_TRUE(keys.locked());
  const auto production = keys.find("Bearer key-of-search-production");
  const auto development = keys.find("Bearer key-of-search-development");
  const auto batch = keys.find("Bearer key-of-the-batch-jobs");
  ASSERT_TRUE(production && development && batch);
  EXPECT_EQ(keys.find("Bearer key-of-nobody-at-all"), nullptr);
  EXPECT_EQ(production->key, "search-prod");
  EXPECT_TRUE(production->admin);
  EXPECT_FALSE(development->admin);
  EXPECT_EQ(production->tenant_id, development->tenant_id);
  EXPECT_NE(production->tenant_id, batch->tenant_id);
  EXPECT_GT(batch->tenant_id, 0);
  EXPECT_EQ(production->meter, development->meter);
  const TenantLimits& limits = production->tenant;
  EXPECT_EQ(limits.name, "search");
  EXPECT_EQ(limits.salt, "a long random text");
  EXPECT_EQ(limits.share, 3);
  EXPECT_EQ(limits.priority_min, -2);
  EXPECT_EQ(limits.priority_max, 7);
  EXPECT_EQ(limits.pin_tokens, 4096);
  EXPECT_EQ(limits.requests_per_minute, 600);
  EXPECT_EQ(limits.tokens_per_minute, 100000);
  EXPECT_EQ(batch->tenant.salt, "batch") << "its name, if none is given";
  EXPECT_DOUBLE_EQ(batch->tenant.pin_part, 0.25 / 4);
}

TEST(TenantFile, HasOneYamlDocument) {
  const std::string one =
      "tenants:\n  - name: a\n    keys: [{name: k, key: a-key-of-this-tenant}]\n";
  EXPECT_TRUE(parse_tenants(one + "---\n", "t.yaml").ok());
  EXPECT_EQ(parse_tenants(one + "---\n" + one, "t.yaml").status().message(),
            "t.yaml:5: is in a second YAML document, after a line '---'; a file has one");
}

TEST(TenantFile, IsRefusedWithTheLineOfTheError) {
  const auto error = [](const std::string& text) {
    return std::string(parse_tenants(text, "t.yaml").status().message());
  };
  const std::string key = "\n    keys: [{name: k, key: a-key-of-this-tenant}]\n";
  EXPECT_THAT(error(""), HasSubstr("must be a mapping with one key, 'tenants'"));
  EXPECT_THAT(error("tenants: []"), HasSubstr("has 0 entries"));
  EXPECT_THAT(error("tenants:\n  - share: 2" + key), HasSubstr("t.yaml:2: a tenant needs a name"));
  EXPECT_THAT(error("tenants:\n  - name: a\n    shares: 2" + key),
              HasSubstr("t.yaml:3: unknown key 'shares'"));
  EXPECT_THAT(error("tenants:\n  - name: a\n    share: 0" + key),
              HasSubstr("t.yaml:3: share: 0 is not within 1 to 1000"));
  EXPECT_THAT(error("tenants:\n  - name: a\n    share: much" + key),
              HasSubstr("'much' is not a whole number"));
  EXPECT_THAT(error("tenants:\n  - name: a\n    share: 1\n    share: 2" + key),
              HasSubstr("t.yaml:4: share: stands here twice"));
  EXPECT_THAT(error("tenants:\n  - name: a b" + key), HasSubstr("letters, digits"));
  EXPECT_THAT(error("tenants:\n  - name: a" + key + "  - name: a" + key),
              HasSubstr("there are two tenants 'a'"));
  EXPECT_THAT(error("tenants:\n  - name: a" + key + "  - name: b" + key),
              HasSubstr("there are two keys 'k'"));
  EXPECT_THAT(
      error("tenants:\n  - name: a" + key +
            "  - name: b\n    keys: [{name: l, key: a-key-of-this-tenant}]\n"),
      AllOf(HasSubstr("key: 'l' has the key of another entry"), Not(HasSubstr("a-key-of"))));
  EXPECT_THAT(error("tenants:\n  - name: a" + key + "  - name: b\n    salt: a" + key),
              HasSubstr("salt: tenant 'b' has the salt of another one"));
  EXPECT_THAT(error("tenants:\n  - name: a"), HasSubstr("needs a list of at least one key"));
  EXPECT_THAT(error("tenants:\n  - name: a\n    keys: [{name: k, key: short}]"),
              AllOf(HasSubstr("at least 16 characters"), Not(HasSubstr("short"))));
  EXPECT_THAT(error("tenants:\n  - name: a\n    keys: [{name: k, key: 'sha256:12'}]"),
              HasSubstr("64 hexadecimal digits"));
  EXPECT_THAT(error("tenants:\n  - name: a\n    priority-min: 5" + key),
              HasSubstr("priority-min is 5, above priority-max"));
  EXPECT_THAT(error("tenants: [}"), HasSubstr("t.yaml:1: is not valid YAML"));
}

TEST(TenantFile, IsRefusedIfEveryUserMayReadIt) {
  const WrittenTenants open(file(), 0644);
  const absl::Status status = ApiKeys::load(open.sources()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("mode 0644"), HasSubstr("chmod 640")));
  open.write(file(), 0600);
  EXPECT_TRUE(ApiKeys::load(open.sources()).ok());
  EXPECT_EQ(ApiKeys::load({.list = {}, .file = {}, .tenants = "/dev/zero"}).status().code(),
            absl::StatusCode::kNotFound);
}

TEST(TenantFile, IsReadAgainWithoutLosingRatesOrIdentities) {
  const WrittenTenants written(file());
  const ApiKeys keys = ApiKeys::load(written.sources()).value();
  const ApiKeys copy = keys;
  const auto before = keys.find("Bearer key-of-the-batch-jobs");
  written.write(R"(
tenants:
  - name: new
    keys: [{name: new, key: key-of-a-new-tenant}]
  - name: batch
    share: 5
    keys: [{name: batch, key: key-of-the-batch-jobs-2}]
)");
  ASSERT_TRUE(keys.reload(written.sources(), {}).ok());
  EXPECT_EQ(copy.find("Bearer key-of-the-batch-jobs"), nullptr);
  const auto after = copy.find("Bearer key-of-the-batch-jobs-2");
  ASSERT_NE(after, nullptr);
  EXPECT_EQ(after->tenant_id, before->tenant_id);
  EXPECT_EQ(after->meter, before->meter);
  EXPECT_EQ(after->tenant.share, 5);
  EXPECT_NE(copy.find("Bearer key-of-a-new-tenant")->tenant_id, before->tenant_id);
  written.write("tenants: nobody\n");
  EXPECT_FALSE(keys.reload(written.sources(), {}).ok());
  EXPECT_NE(copy.find("Bearer key-of-the-batch-jobs-2"), nullptr) << "an error changes nothing";
}

TEST(RateMeter, LimitsRequestsAndSaysWhenToTryAgain) {
  TenantLimits limits;
  limits.requests_per_minute = 60;
  RateMeter meter;
  RateMeter::Time now{seconds(1000)};
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(meter.admit(limits, now).ok()) << "the allowance of ten seconds";
  }
  const absl::Status refused = meter.admit(limits, now);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("60 requests a minute"));
  EXPECT_EQ(retry_after_of(refused), seconds(1));
  EXPECT_TRUE(meter.admit(limits, now + seconds(1)).ok());
  EXPECT_FALSE(meter.admit(limits, now + seconds(1)).ok());
  meter.refund(1, 0);
  EXPECT_TRUE(meter.admit(limits, now + seconds(1)).ok());
}

TEST(RateMeter, ChargesTokensOfPromptsAndAnswers) {
  TenantLimits limits;
  limits.tokens_per_minute = 6000;
  RateMeter meter;
  RateMeter::Time now{seconds(1000)};
  EXPECT_TRUE(meter.admit(limits, now).ok());
  meter.charge(900);
  meter.charge(700);  // 600 more than ten seconds bring
  const absl::Status refused = meter.admit(limits, now);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("6000 tokens a minute"));
  EXPECT_GT(*retry_after_of(refused), seconds(6));
  EXPECT_LT(*retry_after_of(refused), seconds(7));
  EXPECT_FALSE(meter.admit(limits, now + seconds(5)).ok());
  EXPECT_TRUE(meter.admit(limits, now + seconds(7)).ok());
}

class Null final : public EventSink {
 public:
  void on_token(int32_t) override {}
  void on_finish(const Finish&) override {}
};

std::shared_ptr<Caller> caller_of(const std::string& tenant, int32_t id) {
  auto caller = std::make_shared<Caller>();
  caller->tenant.name = tenant;
  caller->tenant.salt = tenant;
  caller->tenant_id = id;
  return caller;
}

absl::StatusOr<EngineRequest> submitted(FakeService& fake, const std::shared_ptr<Caller>& caller,
                                        const std::function<void(GenerateRequest&)>& change) {
  GenerateRequest request;
  request.prompt = std::vector<int32_t>{1, 2, 3};
  request.caller = caller;
  change(request);
  const auto accepted = fake.service->generate(std::move(request), {std::make_shared<Null>()});
  if (!accepted.ok()) {
    return accepted.status();
  }
  return fake.engine->request(accepted->generations[0].id);
}

TEST(Service, GivesTheEngineTheTenantWithItsShareItsPinsAndItsSalt) {
  FakeService fake;
  const auto a = caller_of("a", 1);
  a->tenant.share = 7;
  a->tenant.pin_tokens = 99;
  const auto plain = [](GenerateRequest&) {};
  const auto salted = [](GenerateRequest& request) { request.cache_salt = "x"; };
  const EngineRequest of_a = submitted(fake, a, plain).value();
  EXPECT_EQ(of_a.tenant.id, 1);
  EXPECT_EQ(of_a.tenant.share, 7);
  EXPECT_EQ(of_a.tenant.pin_tokens, 99);
  const EngineRequest of_b = submitted(fake, caller_of("b", 2), plain).value();
  EXPECT_EQ(of_b.tenant.pin_tokens, 400) << "a quarter of the cache";
  EXPECT_NE(of_a.cache_salt, of_b.cache_salt);
  const std::string salt_of_a = submitted(fake, a, salted)->cache_salt;
  EXPECT_NE(salt_of_a, of_a.cache_salt);
  EXPECT_NE(salt_of_a, submitted(fake, caller_of("b", 2), salted)->cache_salt);
  // No salt of a client leads into the prefixes of another tenant.
  const auto forged = [&](GenerateRequest& request) { request.cache_salt = of_b.cache_salt; };
  EXPECT_NE(submitted(fake, a, forged)->cache_salt, of_b.cache_salt);
  EXPECT_EQ(submitted(fake, nullptr, salted)->cache_salt, "x") << "one tenant has no salt";
}

TEST(Service, RefusesPrioritiesAndPinsBeyondTheCallersLimits) {
  FakeService fake;
  const auto caller = caller_of("a", 1);
  caller->tenant.priority_min = 0;
  caller->tenant.priority_max = 2;
  caller->tenant.pin_ttl = seconds(60);
  const absl::Status urgent =
      submitted(fake, caller, [](GenerateRequest& request) { request.priority = -1; }).status();
  EXPECT_EQ(urgent.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(urgent.message()), HasSubstr("priority is -1, this key may use 0 to 2"));
  const auto pinned = [](GenerateRequest& request) {
    request.cache.pin = true;
    request.cache.ttl = seconds(61);
  };
  EXPECT_THAT(std::string(submitted(fake, caller, pinned).status().message()),
              HasSubstr("cache.ttl is 61 s, this server keeps pins for at most 60 s"));
  EXPECT_FALSE(
      submitted(fake, nullptr, [](GenerateRequest& request) { request.priority = -1000; }).ok())
      << "priorities are bounded without a tenant file, too";
}

// A client of OpenAI's dialect does not know the server's limit.
TEST(Service, KeepsAPromptNoLongerThanTheCallersPins) {
  FakeService fake;
  const auto caller = caller_of("a", 1);
  caller->tenant.pin_ttl = seconds(60);
  const auto a_day = [](GenerateRequest& request) { request.retention = seconds(86'400); };
  const EngineRequest capped = submitted(fake, caller, a_day).value();
  ASSERT_EQ(capped.kept.size(), 1u);
  EXPECT_EQ(capped.kept[0].tokens, KeptPrefix::kAll);
  EXPECT_EQ(capped.kept[0].ttl, seconds(60));
  EXPECT_FALSE(capped.cache.pin) << "it changes nothing of what enters the cache";
  EXPECT_TRUE(submitted(fake, caller, [](GenerateRequest&) {})->kept.empty());
}

TEST(Service, NamesTheFieldOfATimeThatIsTooLong) {
  FakeService fake;
  const auto retained = [](GenerateRequest& request) {
    request.cache.pin = true;
    request.cache.ttl = seconds(3601);
    request.ttl_field = "cache.retain";
  };
  EXPECT_THAT(std::string(submitted(fake, nullptr, retained).status().message()),
              HasSubstr("cache.retain is 3601 s, this server keeps pins for at most 3600 s"));
}

TEST(Service, RefusesAPrefetchThatNeedsItsPromptComputed) {
  FakeService fake;
  const auto scored = [](GenerateRequest& request) {
    request.cache.prefetch = true;
    request.sampling.prompt_logprobs = 0;
  };
  EXPECT_THAT(std::string(submitted(fake, nullptr, scored).status().message()),
              HasSubstr("cache.prefetch computes nothing"));
  const auto plain = [](GenerateRequest& request) {
    request.cache.prefetch = true;
    request.max_tokens = 9;
  };
  EXPECT_EQ(submitted(fake, nullptr, plain)->max_tokens, 0);
}

std::shared_ptr<Caller> limited(int64_t requests, int64_t tokens) {
  auto caller = caller_of("a", 1);
  caller->tenant.requests_per_minute = requests;
  caller->tenant.tokens_per_minute = tokens;
  return caller;
}

TEST(Service, CountsTheTokensOfARefusedPromptAsThoseOfATextThatIsOnlyConverted) {
  FakeService fake;
  const auto caller = limited(0, 60'000);  // 10,000 in ten seconds
  const auto too_long = [](GenerateRequest& request) {
    request.prompt = std::vector<int32_t>(110'001, 'a');
  };
  EXPECT_EQ(submitted(fake, caller, too_long).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(submitted(fake, caller, too_long).status().code(), absl::StatusCode::kResourceExhausted)
      << "a tenth of them has used the rate up";
}

TEST(Service, CountsAdmittedRequestsOnceAndRefusedOnesToo) {
  FakeService fake;
  const auto caller = limited(18, 0);  // 3 at once
  const auto admitted = [](GenerateRequest& request) { request.admitted = true; };
  EXPECT_TRUE(fake.service->admit(*caller).ok());
  EXPECT_TRUE(submitted(fake, caller, admitted).ok());
  EXPECT_TRUE(fake.service->admit(*caller).ok());
  EXPECT_FALSE(submitted(fake, caller, [](GenerateRequest& request) {
                 request.admitted = true;
                 request.priority = -1000;
               }).ok());
  EXPECT_TRUE(submitted(fake, caller, [](GenerateRequest&) {}).ok());
  EXPECT_EQ(fake.service->admit(*caller).code(), absl::StatusCode::kResourceExhausted);
}

TEST(Service, DoesNotCountARequestThatTheEngineHasNoRoomFor) {
  FakeService fake;
  const auto caller = limited(6, 600);
  fake.engine->refuse_after(0, absl::ResourceExhaustedError("the queue is full"));
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(fake.service->admit(*caller).ok()) << i;
    EXPECT_FALSE(
        submitted(fake, caller, [](GenerateRequest& request) { request.admitted = true; }).ok());
  }
}

TEST(Service, ChecksACallersLimitsBeforeItsGrammarIsCompiled) {
  FakeService fake;
  GenerateRequest request;
  request.priority = -1000;
  request.grammar = GrammarSpec{.kind = GrammarSpec::Kind::regex, .text = "slow", .field = "f"};
  absl::Status answered;
  fake.service->compile(request, [&](const auto& result) { answered = result.status(); });
  EXPECT_THAT(std::string(answered.message()), HasSubstr("priority is -1000")) << "at once";
}

TEST(Service, CountsTokensOfTenantsInBoundedLabels) {
  Metrics metrics("m");
  Finish finish;
  finish.prompt_tokens = 10;
  finish.completion_tokens = 4;
  for (std::size_t i = 0; i < Metrics::kTenantLabels + 20; ++i) {
    metrics.tenant_finished("t" + std::to_string(i), finish);
  }
  metrics.tenant_finished("t0", finish);
  metrics.tenant_finished("", finish);
  const FakeEngine engine;
  const std::string text = metrics.expose(engine.stats(), engine.options(), 0);
  EXPECT_THAT(text,
              HasSubstr(R"(tessera:tenant_prompt_tokens_total{model_name="m",tenant="t0"} 20)"));
  EXPECT_THAT(
      text,
      HasSubstr(R"(tessera:tenant_generation_tokens_total{model_name="m",tenant="other"} 80)"));
  EXPECT_THAT(text, Not(HasSubstr("tenant=\"t105\"")));
}

}  // namespace
}  // namespace tessera
