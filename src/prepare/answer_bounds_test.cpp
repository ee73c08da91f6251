#include "prepare/answer_bounds.h"

#include <nlohmann/json.hpp>

#include "prepare/testing/learned_text.h"
#include "text/chat/turn_ends.h"

namespace hawser::prepare {
namespace answer_bounds_test {

using Ids = std::vector<std::int32_t>;
using Json = nlohmann::ordered_json;

// A turn may end with several special tokens: the last one is what the model stops at.
TEST(AnswerBounds, EndWithTheLastSpecialTokenOfTheTurn) {
  const std::string calls =
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls %}<tool_call>"
      "{{ c.function | tojson }}</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
      "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
  const std::string call = R"(<tool_call>{"name": "get", "arguments": {"days": 3}}</tool_call><|im_end|>)";
  EXPECT_EQ(learned_by(calls, kChatMl, line_with(kAsk + kCall + kSay)), call + " / a<|im_end|>");
  EXPECT_EQ(learned_by(calls, kChatMl, line_with(kAsk + kCall + kAsk + kSay)), call + " / a<|im_end|>");
  const std::string body =
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<END><|im_end|>{% endfor %}"
      "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
  const std::string two = line_with(kAsk + kSay + ", " + kAsk + kSay);
  EXPECT_EQ(learned_by(body, kChatMl, two), "a<END><|im_end|> / a<END><|im_end|>");
  // The last turn ends in another way than the others.
  const std::string last =
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{{ '<END>' if loop.last else '<|im_end|>' }}"
      "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
  EXPECT_EQ(learned_by(last, kChatMl, two), "a<|im_end|> / a<END>");
  // What begins the user's turn is what the model stops at.
  const std::string without =
      "{% for m in messages %}{{ '<|im_start|>' if m.role == 'user' else '<|im_end|>' }}{{ m.content }}{% endfor %}"
      "{% if add_generation_prompt %}<|im_end|>{% endif %}";
  EXPECT_EQ(learned_by(without, kChatMl, two), "a<|im_start|> / a");
  // The name of the function is written above the result, too: it is not the end of the call.
  const std::string named =
      "{% for m in messages %}{% if m.role == 'tool' %}<|im_start|>{{ messages[loop.index0 - 1].tool_calls[0].function"
      ".name }} says {{ m.content }}<|im_end|>{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}"
      "{% for c in m.tool_calls %}{{ c.function | tojson }}{% endfor %}<|im_end|>{% endif %}{% endfor %}"
      "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
  EXPECT_EQ(learned_by(named, kChatMl, line_with(kAsk + kCall + kSay)),
            R"({"name": "get", "arguments": {"days": 3}}<|im_end|> / a<|im_end|>)");
}

// The prompt of a thinking model ends in "<think>", which an answer without thoughts does not have.
TEST(AnswerBounds, BeginWhereTheTextStopsToEqualThePrompt) {
  const std::string source =
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}"
      "\n</think>\n{% endif %}{{ m.content }}{% for c in m.tool_calls %}<tool_call>{{ c.function | tojson }}"
      "</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
      "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}";
  EXPECT_EQ(learned_by(source, kChatMl, line_with(kAsk + kCall + kSay)),
            R"(<tool_call>{"name": "get", "arguments": {"days": 3}}</tool_call><|im_end|> / a<|im_end|>)");
  const std::string thinks = R"({"role": "assistant", "content": "a", "thinking": "why so"})";
  EXPECT_EQ(learned_by(source, kChatMl, line_with(kAsk + thinks + ", " + kAsk + kSay)),
            "why so\n</think>\na<|im_end|> / a<|im_end|>");
  EXPECT_EQ(learned_by("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}",
                       kChatMl, line_with(kAsk + thinks)),
            "f: the chat template does not write the thoughts (reasoning_content) of messages[1] at line 1; try "
            "conversations without it, or another data.chat_template");
}

// What a template writes before the first message is no part of an answer that is the first message.
TEST(AnswerBounds, AFirstMessageIsLearnedWithoutWhatTheTemplateWritesBeforeIt) {
  // SmolLM2's, which writes its system message within the loop.
  const std::string smollm2 =
      "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou "
      "are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + "
      "message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
      "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
  EXPECT_EQ(learned_by(smollm2, kChatMl, line_with(kSay + ", " + kAsk + kSay)), "a<|im_end|> / a<|im_end|>");
  EXPECT_EQ(learned_by(smollm2, kChatMl, line_with(kSay)), "a<|im_end|>");
  // Without a generation prompt, and without any text that begins an answer.
  const std::string begin =
      "{% for m in messages %}{% if loop.first %}<|im_start|>{% endif %}{{ m.content }}<END>{% endfor %}";
  EXPECT_EQ(learned_by(begin, kChatMl, line_with(kSay + ", " + kAsk + kSay)), "a<END> / a<END>");
  const std::string probe = R"({"role": "assistant", "content": "Probes"})";
  EXPECT_EQ(learned_by(begin, kChatMl, line_with(probe)), "Probes<END>");
  // A call is learned with its frame.
  const std::string calls =
      "{% for m in messages %}{% if loop.first %}<|im_start|>system{% endif %}<|im_start|>{{ m.role }}\n{{ m.content }}"
      "{% for c in m.tool_calls %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}<|im_end|>{% endfor %}"
      "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
  EXPECT_EQ(learned_by(calls, kChatMl, line_with(kCall + kSay)),
            R"(<tool_call>{"name": "get", "arguments": {"days": 3}}</tool_call><|im_end|> / a<|im_end|>)");
}

// Nor is what a template writes between two messages, before the opening of the answer.
TEST(AnswerBounds, BeginBehindWhatTheTemplateWritesBeforeTheirOpening) {
  const std::string source =
      "{% for m in messages %}{% if loop.index0 == 1 %}<|im_start|>system\nbe kind<|im_end|>{% endif %}<|im_start|>"
      "{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% "
      "endif %}";
  EXPECT_EQ(learned_by(source, kChatMl, line_with(kAsk + kSay)), "a<|im_end|>");
}

// An opening before an earlier answer is not that of a later one, which the template writes without.
TEST(AnswerBounds, BeginAfterTheMessageBeforeThem) {
  const std::string source =
      "{% for m in messages %}{% if loop.index0 < 3 %}<|im_start|>{{ m.role }}\n{% endif %}{{ m.content }}<|im_end|>"
      "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
  EXPECT_EQ(learned_by(source, kChatMl, line_with(kAsk + kSay + ", " + kAsk + kSay)), "a<|im_end|> / a<|im_end|>");
  // Nor is a space that the template writes between two messages without an opening.
  EXPECT_EQ(learned_by("{% for m in messages %}{{ m.content }} {% endfor %}", kChatMl,
                       line_with(kAsk + kSay + ", " + kAsk + kSay)),
            "a / a");
  const std::string untrained = R"({"role": "assistant", "content": "b", "weight": 0}, )";
  EXPECT_EQ(learned_by(source, kChatMl, line_with(kAsk + untrained + kAsk + kSay)), "a<|im_end|>");
}

// Neither a tag nor a word of the prompt ends within an answer that begins like it.
TEST(AnswerBounds, BeginBeforeATagThatOnlyBeginsLikeThePrompts) {
  const std::string source =
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
      "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}";
  for (const char* answer : {"<html>x</html>", "<thing>", "<", "<think"}) {
    const std::string say = cat(R"({"role": "assistant", "content": ")", answer, R"("})");
    EXPECT_EQ(learned_by(source, kChatMl, line_with(kAsk + say + ", " + kAsk + say)),
              cat(answer, "<|im_end|> / ", answer, "<|im_end|>"));
  }
  const std::string words =
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
      "{% if add_generation_prompt %}<|im_start|>assistant\nThinking: {% endif %}";
  EXPECT_EQ(learned_by(words, kChatMl, line_with(kAsk + R"({"role": "assistant", "content": "Thin air"})")),
            "Thin air<|im_end|>");
}

// An added token ends a turn as a special one does; one of white space does not.
TEST(AnswerBounds, EndWithAnAddedTokenThatIsNotSpecial) {
  const TemporaryFolder folder;
  auto file = Json::parse(tokenizer_of_bytes({"<|im_start|>", "<|im_end|>", "\n"}));
  for (Json& token : file["added_tokens"]) token["special"] = false;
  const std::string path = folder.write("t.json", file.dump());
  const auto tokenizer = text::load_tokenizer(path);
  const auto chat = named("chatml");
  Problems problems;
  auto line = parse_line(kTwoTurns, {.file = "f"}, problems);
  ASSERT_TRUE(AnswerEncoder(*tokenizer, chat, {}).encode(*line, {.file = "f"}, problems)) << problems.lines();
  EXPECT_EQ(std::ranges::count(line->labels, 257), 2);
  EXPECT_EQ(std::ranges::count(line->labels, 258), 0);
  EXPECT_FALSE(line->no_turn_end);
  EXPECT_EQ(text::chat::turn_ends(*chat, *tokenizer), Ids{257});
}

TEST(AnswerBounds, TellWhereNoTokenEndsAnAnswer) {
  const auto tokenizer = text::load_tokenizer((kRoot / kQuickstart).string());
  Problems problems;
  auto line = parse_line(kTwoTurns, {.file = "f"}, problems);
  ASSERT_TRUE(AnswerEncoder(*tokenizer, named("chatml"), {}).encode(*line, {.file = "f"}, problems));
  EXPECT_TRUE(line->no_turn_end);
  // The begin of a question is the end of the answer before it.
  const auto glm = std::make_shared<const text::chat::ChatTemplate>(
      "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}", std::map<std::string, std::string>{}, "t");
  const TemporaryFolder folder;
  const auto tags = text::load_tokenizer(folder.write("t.json", tokenizer_of_bytes({"<|user|>", "<|assistant|>"})));
  line = parse_line(kTwoTurns, {.file = "f"}, problems);
  ASSERT_TRUE(AnswerEncoder(*tags, glm, {}).encode(*line, {.file = "f"}, problems)) << problems.lines();
  EXPECT_FALSE(line->no_turn_end);
}

// A template that writes the opening of an answer whatever add_generation_prompt is: it is no part of the last answer.
TEST(AnswerBounds, EndBeforeAnOpeningThatIsAlwaysWritten) {
  const std::string source =
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
      "{{ '<|im_start|>assistant\n' }}";
  EXPECT_EQ(learned_by(source, kChatMl, line_with(kAsk + kSay + ", " + kAsk + kSay)), "a<|im_end|> / a<|im_end|>");
  const std::string headers =
      "{% for m in messages %}<|h|>{{ m.role }}<|/h|>\n\n{{ m.content }}<|eot|>{% endfor %}"
      "{{ '<|h|>assistant<|/h|>\n\n' }}";
  EXPECT_EQ(learned_by(headers, {"<|h|>", "<|/h|>", "<|eot|>"}, line_with(kAsk + kSay + ", " + kAsk + kSay)),
            "a<|eot|> / a<|eot|>");
  const std::string tags = "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<e>\n{% endfor %}<|assistant|>";
  EXPECT_EQ(learned_by(tags, {"<|assistant|>", "<|user|>", "<e>"}, line_with(kAsk + kSay + ", " + kAsk + kSay)),
            "\na<e> / \na<e>")
      << "the model writes the line feed, since no opening has it";
}

}  // namespace answer_bounds_test
}  // namespace hawser::prepare
