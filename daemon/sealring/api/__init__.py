"""The HTTP API of a ring's head, as OpenAI's and Anthropic's clients know it.

| module | what it does |
| --- | --- |
| `server` | listens, and ends in good order |
| `connections` | how many clients there may be, and who gives way |
| `connection`, `exchange` | one client, request after request; one request as the app takes it |
| `tls`, `tls_socket` | TLS of that socket: handshakes, certificates that are renewed; its bytes |
| `http1` | HTTP/1.1 on a socket |
| `app` | which path is answered by what |
| `gate` | what every request passes first: who it is from, keys, limits, its id |
| `cors`, `trace_context` | what pages of other origins are told; the trace of a request |
| `bodies`, `json_text` | reads a request's body within its limits; its JSON |
| `values`, `conversation` | what fields are made of; messages and tools of a body |
| `schema`, `messages` | what a body may say; a conversation as the chat template takes it |
| `fields` | what it may not say, and what has no effect |
| `told_tools` | tools in words, where the template has none |
| `held_schema`, `holding` | the fields that hold an answer to a form, and its grammar |
| `forms`, `tool_forms` | forms and tool calls as grammars |
| `unheld` | why a form cannot be held, in words for who sent it |
| `closed_schema` | objects that have the properties they name, and no others |
| `sampling` | how its rows are drawn |
| `generate`, `kinds` | from a request to its answers; what is special about each kind of it |
| `parsing`, `choices` | reasoning and tool calls in a text; what each piece adds to a choice |
| `replies` | what clients see of an answer: a shape for each API |
| `chat`, `completions`, `responses_shape` | the shapes of OpenAI's APIs |
| `responses_body`, `responses_input` | a body of `/v1/responses`, and the inner request of it |
| `responses`, `responses_store` | responses that are kept |
| `anthropic_body`, `anthropic_input`, `anthropic_shape` | the same three of `/v1/messages` |
| `scores` | log probabilities of a prompt, as chat and completions tell them |
| `streaming` | answers as server-sent events |
| `tokens`, `token_schema`, `token_texts` | ids of texts, and back; their number; bodies and jobs |
| `texts` | the jobs of a text worker |
| `models`, `unserved` | the model's names and what it can; paths that have nothing here |
| `openapi`, `answer_schema`, `shape_answers` | a description for programs; the answers in it |
| `keys` | API keys, hashed at rest |
| `errors`, `validation` | every error in OpenAI's or Anthropic's shape; faults of a body in words |
| `head` | what all of them share |
| `health`, `cluster`, `history`, `metrics`, `gen_ai` | what the ring tells of itself |

All of it runs in the event loop that moves the ring's hops, so nothing here computes for long.
"""
