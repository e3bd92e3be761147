package ferry

// DefaultSocket is where the daemon answers.
const DefaultSocket = "/run/kuryr/node.sock"

// MaxInput is the longest standard input in bytes. GC's list of attachments is what makes it long.
const MaxInput = 1 << 20

// The first bytes of a message in the plain form, which no JSON begins with: a zero, and the form's number. A daemon that does not know the form answers in JSON, and so does
// one where a call is not for the ferry.
const (
	mark = 0
	form = 1
)

// Call is what the runtime has asked for: the variables CNI_COMMAND, CNI_CONTAINERID, CNI_NETNS, CNI_IFNAME and CNI_ARGS, none of which can have a zero byte in it, and standard input.
type Call struct {
	Verb, Container, Namespace, Interface, Args string
	Input                                       []byte
}

// head begins a call's message, which its input ends.
func (c Call) head(b []byte) []byte {
	b = append(b, mark, form)
	for _, text := range [...]string{c.Verb, c.Container, c.Namespace, c.Interface, c.Args} {
		b = append(b, text...)
		b = append(b, 0)
	}
	return b
}

// ParseCall reads a call's message; false is one that is not in the plain form, or cut short. Its input is a part of the message.
func ParseCall(message []byte) (c Call, ok bool) {
	rest, ok := unmarked(message)
	for _, text := range [...]*string{&c.Verb, &c.Container, &c.Namespace, &c.Interface, &c.Args} {
		end := 0
		for end < len(rest) && rest[end] != 0 {
			end++
		}
		if end == len(rest) {
			return c, false
		}
		*text, rest = string(rest[:end]), rest[end+1:]
	}
	c.Input = rest
	return c, ok
}

// Answer is an answer's message: the exit status of the process, below 256, and its standard output.
func Answer(status int, output []byte) []byte {
	return append([]byte{mark, form, byte(status)}, output...)
}

// parseAnswer reads it.
func parseAnswer(message []byte) (status int, output []byte, ok bool) {
	rest, ok := unmarked(message)
	if !ok || len(rest) == 0 {
		return 0, nil, false
	}
	return int(rest[0]), rest[1:], true
}

// Plain tells whether a message is in the plain form.
func Plain(message []byte) bool {
	_, ok := unmarked(message)
	return ok
}

func unmarked(message []byte) (rest []byte, ok bool) {
	if len(message) < 2 || message[0] != mark || message[1] != form {
		return nil, false
	}
	return message[2:], true
}
