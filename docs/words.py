"""What the generated tables say in words: one entry for each thing that the code only names."""

from __future__ import annotations

from typing import Final

from sealring_protocol.diagnosis import Cause

FIELDS: Final = {
    "model": "The model's name, as `GET /v1/models` has it.",
    "stream": "Give the answer as server-sent events while it is made.",
    "stream_options": "What a stream has besides the text.",
    "stream_options.include_usage": "End the stream with the counts of tokens.",
    "stream_options.continuous_usage_stats": "With `include_usage`: tell the counts so far in each "
    "chunk, too.",
    "max_tokens": "The most tokens of the answer; what the context allows if left out or -1. If "
    "that is less, the answer gets it, and the header `x-sealring-adapted` names the field.",
    "max_completion_tokens": "As `max_tokens`; where a body has both, this one counts.",
    "temperature": "0 always takes the likeliest token. If left out, as [the model](#sampling) has "
    "it, or else 1.",
    "top_p": "Choose among the likeliest tokens that make up this share; 1 if left out, unless "
    "[the model](#sampling) has another. With 0 the likeliest one is taken.",
    "top_k": "Choose among this many likeliest tokens; all with 0 or -1. If left out, as "
    "[the model](#sampling) has it, or else all.",
    "min_p": "Leave out tokens less likely than this share of the likeliest; 0 if left out.",
    "repetition_penalty": "Makes tokens that were there before less likely (CTRL's way); 1, which "
    "changes nothing, if left out.",
    "presence_penalty": "Off the logit of every token that the answer has; 0 if left out.",
    "frequency_penalty": "As `presence_penalty`, once for each time that the answer has the "
    "token; 0 if left out.",
    "logit_bias": "What is added to a token's logit, by the token's id as text.",
    "n": "Choices for each prompt; 1 if left out.",
    "seed": "The same seed, settings and prompt give the same text; random if left out.",
    "stop": "The answer ends before any of these texts; an empty one ends nothing.",
    "stop_token_ids": "The answer ends before any of these tokens, too.",
    "include_stop_str_in_output": "Give out the text of `stop` that ended the answer. Tokens that "
    "end it are never given out.",
    "ignore_eos": "Go on where the model would end, up to `max_tokens` or a stop.",
    "skip_special_tokens": "With true, leave special tokens out of the text; marks of reasoning "
    "and tool calls are found anyway.",
    "cache_salt": "Only requests with the same salt continue each other's cached prompts. Callers "
    "stay apart as they do without a salt.",
    "truncate_prompt_tokens": "Use only the last so many tokens of the prompt; -1 for those that "
    "leave room for the answer.",
    "add_special_tokens": "Put the tokens around the prompt that the tokenizer has for the "
    "beginning of a text. If left out, true for a text, and false for a conversation, whose "
    "template has them.",
    "return_token_strs": "Tell what the vocabulary has for each token, too.",
    "tokens": "The ids.",
    "messages": "The conversation so far.",
    "messages[].role": "Whose message it is; `developer` is `system` here, and `function` is "
    "`tool`. An order of roles that the template refuses is [changed](#conversations).",
    "messages[].content": "Its text.",
    "messages[].content[].type": "Text is the only kind of part, and a file whose `file_data` is "
    "text is one. Images, sound and other files are refused by name in the last turn; in earlier "
    "turns a few words stand for them, and `x-sealring-ignored` says where.",
    "messages[].content[].text": "The text of the part.",
    "messages[].content[].refusal": "What an earlier answer said in place of a text.",
    "messages[].name": "Who speaks, where the model's template has that.",
    "messages[].reasoning_content": "What the model thought before an earlier answer.",
    "messages[].reasoning": "The same by its other name, where the first is left out.",
    "messages[].tool_calls": "The calls of an earlier answer.",
    "messages[].tool_calls[].id": "The call's id, which its result names.",
    "messages[].tool_calls[].type": "Functions are the only kind of tool.",
    "messages[].tool_calls[].function": "What was called.",
    "messages[].tool_calls[].function.name": "The function's name.",
    "messages[].tool_calls[].function.arguments": "Its arguments, as a JSON text or an object.",
    "messages[].function_call": "The call of an earlier answer as older clients have it.",
    "messages[].function_call.name": "The function's name.",
    "messages[].function_call.arguments": "Its arguments, as a JSON text or an object.",
    "messages[].tool_call_id": "Of which call a `tool` message is the result.",
    "tools": "The functions that the model may call. Where the model's template has none, a "
    "message tells the model of them, and the answer's header `x-sealring-tools` says `in-words`; "
    "where one must be called, the answer is held to the JSON of a call, and it says `as-json`.",
    "tools[].type": "Functions are the only kind of tool.",
    "tools[].function": "One function.",
    "tools[].function.name": "Its name.",
    "tools[].function.description": "What it does, for the model.",
    "tools[].function.parameters": "A JSON schema of its arguments. The model is told of it; a "
    "call may be held to it, too: see [forms](#forms).",
    "tools[].function.strict": "With true a call's arguments are held to the schema; "
    "`x-sealring-ignored` names what of it is not. See [forms](#forms).",
    "functions": "What older clients have in place of `tools`; with both these have no effect. A "
    "call is then told as `function_call`, and ends the answer.",
    "functions[].name": "Its name.",
    "functions[].description": "What it does, for the model.",
    "functions[].parameters": "A JSON schema of its arguments.",
    "functions[].strict": "As that of `tools`.",
    "function_call": "What older clients have in place of `tool_choice`.",
    "function_call.name": "The function that must be called.",
    "tool_choice": "`auto` if left out. With `required` or a named function the call is begun "
    "for the model, and held to its [form](#forms).",
    "tool_choice.type": "Functions are the only kind of tool.",
    "tool_choice.function": "The function that has to be called.",
    "tool_choice.function.name": "Its name, which must be among the tools.",
    "parallel_tool_calls": "With false the answer ends after its first call.",
    "prediction": "What the answer is likely to contain. It is the same answer with it; where the "
    "ring guesses tokens it may come sooner, the more of them the prediction has right. "
    "With `ahead` on a GPU the arithmetic may differ as it does "
    "in a batch.",
    "prediction.type": "Text is the only kind.",
    "prediction.content": "Its text.",
    "prediction.content[].type": "Text is the only kind of part.",
    "prediction.content[].text": "The text of the part.",
    "prediction.content[].refusal": "As in a message.",
    "response_format": "The form that the answer is held to; see [forms](#forms).",
    "response_format.type": "`json_object` is any JSON object.",
    "response_format.json_schema": "What `json_schema` holds the answer to.",
    "response_format.json_schema.name": "What the schema is called; has no effect.",
    "response_format.json_schema.description": "What it is for; has no effect.",
    "response_format.json_schema.schema": "The JSON schema. It is held; see [forms](#forms).",
    "response_format.json_schema.strict": "Has no effect: a schema is always held.",
    "min_tokens": "The answer does not end by itself before so many tokens.",
    "bad_words": "Words that the answer must not have, alone or after a space.",
    "structured_outputs": "The form of the answer, as vLLM has it; see [forms](#forms).",
    "structured_outputs.json": "A JSON schema, or its text.",
    "structured_outputs.regex": "A regular expression for the whole answer.",
    "structured_outputs.choice": "The answers that there may be.",
    "structured_outputs.grammar": "A grammar in Lark's notation, or in GBNF.",
    "structured_outputs.json_object": "Any JSON object.",
    "structured_outputs.disable_any_whitespace": "No blank space between the parts of a JSON text.",
    "structured_outputs.whitespace_pattern": "A regular expression for that blank space.",
    "structured_outputs.disable_additional_properties": "Only false.",
    "structured_outputs.structural_tag": "Only left out.",
    "guided_json": "As `structured_outputs.json`, which is newer.",
    "guided_regex": "As `structured_outputs.regex`.",
    "guided_choice": "As `structured_outputs.choice`.",
    "guided_grammar": "As `structured_outputs.grammar`.",
    "guided_whitespace_pattern": "As `structured_outputs.whitespace_pattern`.",
    "reasoning_effort": "Given to the model's template; `none` turns thinking off where the model "
    "thinks. Where the template does not look at it, `x-sealring-ignored` names it.",
    "chat_template_kwargs": "More settings for the model's template; none that it reserves. "
    "`x-sealring-ignored` names those that it does not look at.",
    "documents": "Texts to answer from, for the model's template; refused where it has none.",
    "add_generation_prompt": "With false, the prompt ends with the last message.",
    "continue_final_message": "The answer goes on with the last message.",
    "modalities": '`["text"]` is the only one.',
    "prompt_logprobs": "Tell the log probability and the rank of each token of the prompt, and "
    "those of this many of the likeliest tokens in its place, as vLLM does. Not in a stream.",
    "logprobs": "Tell log probabilities. A number above 0 is taken as true, and as `top_logprobs`.",
    "top_logprobs": "How many of the likeliest tokens to tell them for; needs `logprobs`.",
    "prompt": "The text to continue, or its token ids, or several of either.",
    "echo": "Begin the answer with the prompt, and `logprobs` with those of its tokens.",
    "suffix": "What comes after the gap that the answer fills. Refused where the model has no "
    "tokens for that.",
}
"""By name, with ``[]`` after a list and a dot before what is in an object."""

ADAPTED: Final = {
    "tool-arguments-wrapped": "A call's arguments that are no object, as those of a call that was "
    "cut off, are in one, as `arguments`.",
    "tool-call-ids-shortened": "The ids of calls and results have nine letters and digits.",
    "tool-calls-split": "Each call has a message of its own, before its result.",
    "tool-results-wrapped": "A result without a call is the user's text, in `<tool_response>`.",
    "system-joined": "The system messages at the front are one.",
    "system-wrapped": "A later system message is the user's text, in `<system-reminder>`.",
    "turns-joined": "Messages of one role that follow one another are one, with a blank line "
    "between.",
    "user-added": 'The user begins, with "Please begin."',
    "system-to-user": "The system message is the beginning of what the user says.",
}

COMPLETION_FIELDS: Final = {
    "max_tokens": "The most tokens of the answer; 16 if left out, and what the context allows if "
    "-1. With 0 the prompt is read, and no token is drawn.",
    "logprobs": "Tell log probabilities, and those of this many of the likeliest tokens; true "
    "is 1.",
}
"""What a text completion has otherwise."""

ERRORS: Final = {
    "bad_request": ("400", "It is not a request of HTTP/1.1. (The status may be another 4xx or "
                    "5xx that fits the fault.)"),
    "context_length_exceeded": ("400", "Prompt and answer are longer than the model's context, or "
                                "than what the tightest rank has room for."),
    "empty_prompt": ("400", "The prompt has no tokens."),
    "invalid_json": ("400", "The body is not JSON."),
    "invalid_value": ("400", "A field is wrong; `param` names it."),
    "missing_required_parameter": ("400", "A field is missing; `param` names it."),
    "too_many_values": ("400", "The body has too many values."),
    "tls_needed": ("400", "The port speaks TLS, and the request was plain HTTP."),
    "form_not_held": (
        "400",
        "The answer could not be held to its form any further; the message says why. In a stream "
        "it is an event.",
    ),
    "unsupported_form": ("400", "The form of the answer cannot be held; the message says why."),
    "unsupported_parameter": ("400", "A field is known, and cannot be honoured here."),
    "invalid_api_key": ("401", "A key is needed, and none or an unknown one came."),
    "wrong_host": ("403", "Without keys: the request names a host that is neither loopback nor in "
                   "the config's `allowed_hosts`. The message has the line to add."),
    "wrong_origin": ("403", "The request comes from a page of another origin, which the config's "
                     "`allowed_origins` does not name. The message has the line to add."),
    "wrong_site": ("403", "The request comes from a page of another site."),
    "may_not_admit": ("403", "Who asks may not say which machines become members; the message says "
                      "who may."),
    "not_in_background": ("400", "A response that is to be cancelled is over, or not made in the "
                          "background."),
    "stream_not_found": ("404", "No answer of this caller's that is so called is kept."),
    "idempotency_key_reused": ("409", "The `Idempotency-Key` was sent with another body or path."),
    "taken_over": ("409", "Another request goes on with this answer. In a stream it is an event."),
    "client_gone": ("499", "Nobody read the answer for `resume_seconds`. It is an event of what is "
                    "kept of it."),
    "response_not_found": ("404", "There is no such response of this caller's, or no longer."),
    "item_not_found": ("404", "`input` refers to an item that no response of this caller's that "
                       "is kept has."),
    "model_not_found": ("404", "There is no such model."),
    "not_found": ("404", "There is nothing at this path."),
    "request_not_found": ("404", "There is no such request, or no longer."),
    "endpoint_not_supported": ("404", "Other servers have this endpoint; here there is none."),
    "method_not_allowed": ("405", "The path does not take this method."),
    "request_timeout": ("408", "The header or the body did not arrive in time."),
    "newcomer_not_found": ("404", "No machine waits whose visit has this id."),
    "newcomer_not_decided": ("409", "The machine has left, somebody has decided already, or it did "
                             "not join; the message says which."),
    "request_ambiguous": ("409", "Several requests under way are called so by their clients."),
    "request_over": ("409", "The request that is to be cancelled is over."),
    "request_too_large": ("413", "The body is too large."),
    "uri_too_long": ("414", "The path and query are larger than 2 KiB."),
    "unsupported_media_type": ("415", "The body is not `application/json`, or is encoded."),
    "text_limit_exceeded": ("422", "The prompt or its template took more time or memory than a "
                            "text worker may; it would again."),
    "rate_limit_exceeded": ("429", "The queue is full. `Retry-After` says when to come back."),
    "header_too_large": ("431", "The header is larger than 16 KiB, or has more than 100 "
                         "fields; or a chunk's header is larger than 2 KiB."),
    "client_closed": ("499", "The client closed its side before it had its answer."),
    "request_cancelled": ("499", "Somebody cancelled the request."),
    "generation_failed": ("500", "The ring gave up on this request; the message says why."),
    "internal_error": ("500", "A fault of the server; the log says more."),
    "text_worker_wrong": ("500", "What the text worker answered was no answer; it was ended."),
    "not_implemented": ("501", "The server is no proxy."),
    "keys_unreadable": ("503", "The file of API keys cannot be read."),
    "head_lost": ("503", "The machine that was asked lost the head before the answer was complete, "
                  "and nobody went on with it. In a stream it is the last event."),
    "no_majority": ("503", "The head that was asked may not answer: too few machines are there to "
                    "be sure that they have elected no other. Ask another machine."),
    "no_head": ("503", "The follower that was asked cannot reach the head; the message says why."),
    "no_texts": ("503", "The roster lets the member that was asked see no texts; ask the head."),
    "no_tokenizer": ("503", "The model's tokenizer is missing."),
    "no_worker": ("503", "No text worker can be started."),
    "not_head": ("503", "This node is not the head; the message names it."),
    "overloaded": ("503", "Too many requests or connections at once, in all or by one caller."),
    "ring_not_ready": ("503", "The ring is not up; the message says what it waits for."),
    "shutting_down": ("503", "The head, or the follower that was asked, is draining."),
    "text_worker_lost": ("503", "The text worker that read this request died."),
    "timeout": ("504", "The request took longer than the config's `timeout`."),
    "http_version_not_supported": ("505", "Only HTTP/1.0 and HTTP/1.1 are spoken."),
}  # fmt: skip
"""Status and meaning of each code."""

LIMITS: Final = {
    "gate.MAX_REQUEST_ID": "Characters of an `x-request-id` that is taken up.",
    "gate.MAX_STATE": "Characters of a `tracestate` that is taken up.",
    "config.MAX_ALLOWED": "Names in `allowed_hosts`, and in `allowed_origins`.",
    "bodies.MAX_BODY": "Bytes of one body.",
    "bodies.MAX_BODIES": "Bytes of all bodies that are being read; one caller has half at most.",
    "bodies.BODY_SECONDS": "Seconds for a body to arrive.",
    "http1.MAX_HEADER": "Bytes of a header.",
    "http1.HEADER_SECONDS": "Seconds for a header to arrive.",
    "tls.HANDSHAKE_SECONDS": "Seconds for a TLS handshake.",
    "http1.STUCK_SECONDS": "Seconds after which a client that takes no bytes is given up.",
    "connections.MAX_CONNECTIONS": "Connections at once, or fewer where the system allows fewer "
    "open files.",
    "connections.PART_OF_SOURCE": "The part of them that one address may have.",
    "gate.PART_OF_ONE": "How many requests with one key are answered at once, as a part of them.",
    "head.MAX_HELD": "Bytes of large texts and prompts that requests under way have for their "
    "answers, and of large answers that wait for their clients; one caller has half at most.",
    "pages.MAX_LISTENERS": "Listeners to `/v1/cluster/events`.",
    "pages.MAX_LISTENERS_OF_ONE": "Those of one caller.",
    "state.MAX_LIVE": "Requests under way in `/v1/cluster` and its events.",
    "schema.MAX_CHOICES": "Choices of one request, over all its prompts.",
    "schema.MAX_MESSAGES": "Messages of a conversation.",
    "schema.MAX_PARTS": "Parts of a message, and calls of one.",
    "schema.MAX_TOOLS": "Tools.",
    "schema.MAX_PROMPT_IDS": "Ids of a prompt that is given so.",
    "schema.MAX_VALUES": "Values in a body.",
    "schema.MAX_LIKELY": "Log probabilities of an answer that is not streamed, or of a response: "
    "those of its tokens, and of the likeliest ones in their places, for each choice.",
    "schema.MAX_SCORED": "Log probabilities of prompts in one answer: those of the tokens, and of "
    "the likeliest ones in their places, for each choice.",
    "schema.MAX_STOPS": "Stop texts.",
    "schema.MAX_STOP": "Characters of a stop text.",
    "schema.MAX_STOP_TEXT": "Characters of all stop texts of a request.",
    "responses.MAX_METADATA": "Entries of a response's metadata.",
    "kept.MAX_KEPT": "Bytes of all responses that are kept, each with the items before "
    "it; when there are more, the oldest of one of those who have most go.",
    "kept.MAX_KEPT_OF_ONE": "Bytes of those of one caller (without a known key, of one "
    "address); the oldest go first.",
    "kept.MAX_KEPT_COUNT": "How many of one caller are kept.",
    "kept.MAX_KEPT_ITEMS": "Items of one caller's; the oldest responses go first.",
    "kept.MAX_KEPT_EACH": "Bytes of one; a larger one is not kept.",
    "resume.MAX_ANSWERS": "Bytes of all answers that are kept to come back to; when there are "
    "more, the oldest that is over of the caller who has most goes.",
    "resume.MAX_ANSWERS_OF_ONE": "Bytes of those of one caller (without a known key, of one "
    "address).",
    "resume.MAX_ANSWER": "Bytes of one; a longer one is not kept any further.",
    "resume.MAX_COUNT": "How many are kept.",
    "resume.MAX_COUNT_OF_ONE": "How many of one caller.",
    "resume.MAX_UNREAD": "How many are made at once while nobody reads them, but for those that "
    "the head before has left.",
    "resume.MAX_UNREAD_OF_ONE": "How many of one caller; the one left longest ends.",
    "resume.MAX_KEY": "Characters of an `Idempotency-Key`.",
    "replies.MAX_CALL": "Characters of a tool call in an answer; a longer one is text.",
    "workers.MAX_WAITING": "Bytes of texts that wait for a text worker; one caller has half at "
    "most.",
}
"""By module and name."""

CAUSES: Final = {
    Cause.DRAINING: "The node is to stop, to load another model, or to be the head no more, and "
    "finishes what runs.",
    Cause.NO_MAJORITY: "The head does not answer, as another may have been elected; or too few "
    "machines are there to elect one.",
    Cause.STARVED: "An engine gets too little processor time, or its memory is on disk. The ring "
    "is slow, or takes long to come up.",
    Cause.ROSTER_EXPIRED: "The roster's time is over, so every link has ended.",
    Cause.ROSTER_CONFLICT: "Two nodes hold two rosters with one serial.",
    Cause.NOT_A_MEMBER: "Another node holds a newer roster, without this node.",
    Cause.ENGINE_STARTING: "This node's engine has not said yet what its model is.",
    Cause.ENGINE_SILENT: "The head's engine has said nothing for 15 s, while the ring serves.",
    Cause.ENGINE_DYING: "This node's engine has ended, once or several times in a row.",
    Cause.NO_TOKENIZER: "The head cannot use the model's tokenizer.",
    Cause.TOKENIZER_LOADING: "The head is loading the tokenizer. Requests wait for that.",
    Cause.ENGINE_UNREADABLE: "This node's engine cannot read the model.",
    Cause.NO_ADDRESS: "The roster has no address for that node, so it has to dial.",
    Cause.DIALING: "That node is being dialed.",
    Cause.UNREACHABLE: "No connection to that node comes up; the reason is the system's.",
    Cause.SILENT: "That node ended the handshake without a word.",
    Cause.ITSELF: "This node itself answers at the address that the roster has for that node.",
    Cause.NO_ANSWER: "That node takes connections and does not answer.",
    Cause.OTHER_MODEL: "The two nodes hold different models.",
    Cause.MANIFEST: "One of the two has a manifest of the model, the other has none.",
    Cause.OTHER_VERSION: "Two nodes run releases of sealring without a common step version.",
    Cause.OTHER_POLICY: "The two nodes disagree on a policy.",
    Cause.SAME_KEY: "Two nodes run with the same key, and the one that came later is taken.",
    Cause.REFUSED: "One of the two refused the other, for the reason that is told.",
    Cause.BROKEN: "A link was there, and broke.",
    Cause.PEER_ENGINE: "That node's engine has not said yet what its model is.",
    Cause.TOO_LITTLE_ROOM: "The model does not fit the memory of the ranks.",
    Cause.NO_PLAN: "The model cannot be split over these ranks as the config asks.",
    Cause.UNSERVABLE: "That rank can never serve this model as it is asked to: its folder lacks "
    "something, its tensors do not fit, or the model cannot be split there.",
    Cause.CANNOT_SERVE: "That rank could not load its layers, or failed while it ran.",
    Cause.COLLECTIVE: "The ranks do not find each other for tensor parallelism.",
    Cause.FETCHING: "Ranks fetch the weights that they own; the text tells how far each is.",
    Cause.LOADING: "A rank loads its layers.",
    Cause.NOT_HEAD: "A newer roster has made another node the head, which is to be asked.",
    Cause.NO_EPOCH: "This rank is linked to the head, which has not begun.",
    Cause.OUTSIDE: "The ring goes on without this rank, for the reason that is told.",
    Cause.BEGINNING: "The ring is about to begin.",
}
