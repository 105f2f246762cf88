// Drives Go's client: driver produce|mixed|rush|consume|sql|tags|broadcast|fails|outage|dies|orderly|pull NAMESRV TOPIC GROUP
// or timed|batch|transactions|ask|answer NAMESRV TOPIC GROUP
// or many of them, side by side: driver many NAMESRV MODE:TOPIC:GROUP[:COUNT:INTERVAL_MS],... -
// One JSON object a line on standard output, of many with the number of its driver (of); ends when standard input closes.
// mixed: sends TagA and TagB in turn. fails: each message fails twice. outage: everything fails for a minute.
// timed: delay level 2 (5 s). transactions: numbers that 3 divides are rolled back, and of the others the odd ones are
// committed by the broker's question.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

const (
	interval    = 50 * time.Millisecond
	outage      = time.Minute
	condition   = "number >= 10 AND parity IN ('even') AND missing IS NULL"
	batchSize   = 4
	sendTimeout = 3 * time.Second
	askTimeout  = 5 * time.Second
)

var (
	namesrv = primitive.NamesrvAddr(strings.Split(os.Args[2], ";"))
	output  sync.Mutex
	account = primitive.Credentials{
		AccessKey: os.Getenv("ROCKETMQ_ACCESS_KEY"),
		SecretKey: os.Getenv("ROCKETMQ_SECRET_KEY"),
	}
)

type driver struct {
	mode, topic, group string
	count              int
	interval           time.Duration
	of                 int
	instance           string
}

type event map[string]any

func (d *driver) say(what event) {
	what["ms"] = time.Now().UnixMilli()
	if d.of >= 0 {
		what["of"] = d.of
	}
	line, _ := json.Marshal(what)
	output.Lock()
	defer output.Unlock()
	fmt.Println(string(line))
}

func (d *driver) must(err error) {
	if err != nil {
		d.say(event{"event": "fatal", "text": err.Error()})
		os.Exit(1)
	}
}

func (d *driver) producerOptions() []producer.Option {
	return []producer.Option{
		producer.WithNameServer(namesrv),
		producer.WithGroupName(d.group),
		producer.WithInstanceName(d.instance),
		producer.WithSendMsgTimeout(sendTimeout),
		producer.WithCredentials(account),
	}
}

func (d *driver) producer() rocketmq.Producer {
	client, err := rocketmq.NewProducer(d.producerOptions()...)
	d.must(err)
	d.must(client.Start())
	d.say(event{"event": "ready"})
	return client
}

func (d *driver) message(seq int) *primitive.Message {
	message := primitive.NewMessage(d.topic, []byte(strconv.Itoa(seq)))
	tag, parity := "TagA", "even"
	if seq%2 == 1 {
		parity = "odd"
		if d.mode == "mixed" {
			tag = "TagB"
		}
	}
	message.WithTag(tag).WithKeys([]string{"key-" + strconv.Itoa(seq)})
	message.WithProperty("number", strconv.Itoa(seq))
	message.WithProperty("parity", parity)
	if d.mode == "timed" {
		message.WithDelayTimeLevel(2)
	}
	return message
}

func checked(result *primitive.SendResult, err error) error {
	if err == nil && result.Status != primitive.SendOK {
		err = fmt.Errorf("send status %d", result.Status)
	}
	return err
}

func (d *driver) produce() {
	client := d.producer()
	began := int64(0) // the first try of what is sent, ms
	for seq := 0; d.count < 0 || seq < d.count; {
		var result *primitive.SendResult
		var err error
		if began == 0 {
			began = time.Now().UnixMilli()
		}
		last := seq
		if d.mode == "batch" {
			last = seq + batchSize - 1
			var messages []*primitive.Message
			for each := seq; each <= last; each++ {
				messages = append(messages, d.message(each))
			}
			result, err = client.SendSync(context.Background(), messages...)
		} else {
			result, err = client.SendSync(context.Background(), d.message(seq))
		}
		if err = checked(result, err); err != nil {
			d.say(event{"event": "failed", "seq": seq, "text": err.Error()})
		} else {
			for ; seq <= last; seq++ {
				d.say(event{"event": "acked", "seq": seq, "id": result.MsgID, "began": began})
			}
			began = 0
		}
		time.Sleep(d.interval)
	}
	d.say(event{"event": "done"})
}

// Eight at once, each message once: what the client repeats it repeats by itself. Counts, once a second.
func (d *driver) rush() {
	client := d.producer()
	var seq, acked, failed atomic.Int64
	for each := 0; each < 8; each++ {
		go func() {
			for {
				message := primitive.NewMessage(d.topic, []byte(strconv.FormatInt(seq.Add(1), 10)))
				if err := checked(client.SendSync(context.Background(), message)); err != nil {
					failed.Add(1)
					time.Sleep(time.Millisecond)
				} else {
					acked.Add(1)
				}
			}
		}()
	}
	for range time.Tick(time.Second) {
		d.say(event{"event": "rushed", "acked": acked.Load(), "failed": failed.Load()})
	}
}

type decisions struct{ of *driver }

func seqOf(body []byte) int {
	seq, _ := strconv.Atoi(string(body))
	return seq
}

func (decisions) ExecuteLocalTransaction(message *primitive.Message) primitive.LocalTransactionState {
	switch seq := seqOf(message.Body); {
	case seq%3 == 0:
		return primitive.RollbackMessageState
	case seq%2 == 1:
		return primitive.UnknowState
	}
	return primitive.CommitMessageState
}

func (d decisions) CheckLocalTransaction(message *primitive.MessageExt) primitive.LocalTransactionState {
	d.of.say(event{"event": "checked", "seq": seqOf(message.Body)})
	return primitive.CommitMessageState
}

func (d *driver) transactions() {
	client, err := rocketmq.NewTransactionProducer(decisions{d}, d.producerOptions()...)
	d.must(err)
	d.must(client.Start())
	d.say(event{"event": "ready"})
	for seq := 0; d.count < 0 || seq < d.count; {
		result, err := client.SendMessageInTransaction(context.Background(), d.message(seq))
		if err == nil {
			err = checked(result.SendResult, nil)
		}
		if err != nil {
			d.say(event{"event": "failed", "seq": seq, "text": err.Error()})
		} else {
			d.say(event{"event": "acked", "seq": seq, "id": result.MsgID})
			seq++
		}
		time.Sleep(d.interval)
	}
	d.say(event{"event": "done"})
}

func (d *driver) ask() {
	client := d.producer()
	for seq := 0; d.count < 0 || seq < d.count; seq++ {
		answer, err := client.Request(context.Background(), askTimeout, d.message(seq))
		if err != nil {
			d.say(event{"event": "failed", "seq": seq, "text": err.Error()})
			time.Sleep(10 * d.interval) // it fails at once while nobody is there
		} else {
			d.say(event{"event": "replied", "seq": seq, "text": string(answer.Body)})
		}
		time.Sleep(d.interval)
	}
	d.say(event{"event": "done"})
}

func (d *driver) consumerOptions() []consumer.Option {
	times, model := int32(16), consumer.Clustering
	if d.mode == "dies" {
		times = 1
	}
	if d.mode == "broadcast" {
		model = consumer.BroadCasting
	}
	return []consumer.Option{
		consumer.WithNameServer(namesrv),
		consumer.WithGroupName(d.group),
		consumer.WithInstance(d.instance),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		consumer.WithConsumerModel(model),
		consumer.WithConsumerOrder(d.mode == "orderly"),
		consumer.WithMaxReconsumeTimes(times),
		consumer.WithCredentials(account),
	}
}

func (d *driver) wanted() consumer.MessageSelector {
	switch d.mode {
	case "sql":
		return consumer.MessageSelector{Type: consumer.SQL92, Expression: condition}
	case "tags":
		return consumer.MessageSelector{Type: consumer.TAG, Expression: "TagB"}
	}
	return consumer.MessageSelector{}
}

func (d *driver) received(message *primitive.MessageExt) {
	d.say(event{
		"event": "received", "seq": seqOf(message.Body), "keys": message.GetKeys(), "tag": message.GetTags(),
		"queue": message.Queue.QueueId, "offset": message.QueueOffset, "times": message.ReconsumeTimes,
	})
}

func (d *driver) consume() {
	client, err := rocketmq.NewPushConsumer(d.consumerOptions()...)
	d.must(err)
	var answers rocketmq.Producer
	if d.mode == "answer" {
		answers = d.producer()
	}
	var ends atomic.Int64 // of the outage, ms
	listen := func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, message := range messages {
			d.received(message)
			if d.mode == "outage" {
				ends.CompareAndSwap(0, time.Now().Add(outage).UnixMilli())
			}
			fails := d.mode == "dies" || d.mode == "fails" && message.ReconsumeTimes < 2 || time.Now().UnixMilli() < ends.Load()
			if fails {
				return consumer.ConsumeRetryLater, nil
			}
			if d.mode == "answer" {
				reply, err := consumer.CreateReplyMessage(message, nil) // it takes a body for properties
				if err == nil {
					reply.Body = []byte("re: " + string(message.Body))
					err = checked(answers.SendSync(context.Background(), reply))
				}
				if err != nil {
					d.say(event{"event": "failed", "seq": seqOf(message.Body), "text": err.Error()})
				}
			}
		}
		return consumer.ConsumeSuccess, nil
	}
	d.must(client.Subscribe(d.topic, d.wanted(), listen))
	d.must(client.Start())
	d.say(event{"event": "ready"})
}

func (d *driver) pull() {
	client, err := rocketmq.NewPullConsumer(d.consumerOptions()...)
	d.must(err)
	d.must(client.Subscribe(d.topic, d.wanted()))
	d.must(client.Start())
	d.say(event{"event": "ready"})
	for {
		taken, err := client.Poll(context.Background(), time.Second)
		if err != nil {
			if !consumer.IsNoNewMsgError(err) {
				d.say(event{"event": "failed", "text": err.Error()})
				time.Sleep(d.interval)
			}
			continue
		}
		for _, message := range taken.GetMsgList() {
			d.received(message)
		}
		client.ACK(context.Background(), taken, consumer.ConsumeSuccess)
	}
}

func (d *driver) run() {
	switch d.mode {
	case "produce", "mixed", "timed", "batch":
		d.produce()
	case "rush":
		d.rush()
	case "transactions":
		d.transactions()
	case "ask":
		d.ask()
	case "pull":
		d.pull()
	default:
		d.consume()
	}
}

func main() {
	rlog.SetLogLevel("error")
	mode, topic, group := os.Args[1], os.Args[3], os.Args[4]
	if mode == "many" {
		for of, each := range strings.Split(topic, ",") {
			part := strings.Split(each, ":")
			one := driver{mode: part[0], topic: part[1], group: part[2], count: -1, interval: interval, of: of}
			if len(part) > 3 {
				one.count, _ = strconv.Atoi(part[3])
				ms, _ := strconv.Atoi(part[4])
				one.interval = time.Duration(ms) * time.Millisecond
			}
			one.instance = fmt.Sprintf("many%d_%d", os.Getpid(), of)
			go one.run()
		}
	} else {
		one := driver{mode: mode, topic: topic, group: group, count: -1, interval: interval, of: -1}
		one.instance = "DEFAULT"
		go one.run()
	}
	_, _ = io.Copy(io.Discard, bufio.NewReader(os.Stdin))
	time.Sleep(500 * time.Millisecond)
}
