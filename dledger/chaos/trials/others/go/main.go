// A producer and an orderly consumer of Apache RocketMQ's Go client, for trials of dledger.
//
//	otherclient NAMESRV TOPIC GROUP NAME
//
// What it does is written to standard output, one JSON object a line (dledger/chaos/trials/other_clients.py).
// Standard input: the line "start" begins to send, "stop" ends that. When the input ends, so does the program.
// Times are those of the machine's monotonic clock, in ns.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

const (
	every          = 20 * time.Millisecond
	batch          = 3
	batchEvery     = 10
	keyedEvery     = 3
	orderKeys      = 5
	clockMonotonic = 1
)

var (
	output  sync.Mutex
	out     = os.Stdout
	stopped atomic.Bool
)

type event map[string]any

func say(what event) {
	line, err := json.Marshal(what)
	if err != nil {
		panic(err)
	}
	output.Lock()
	defer output.Unlock()
	fmt.Fprintln(out, string(line))
}

func must(err error) {
	if err != nil {
		say(event{"event": "failed", "text": err.Error()})
		os.Exit(1)
	}
}

func now() int64 {
	var at syscall.Timespec
	syscall.Syscall(syscall.SYS_CLOCK_GETTIME, clockMonotonic, uintptr(unsafe.Pointer(&at)), 0)
	return at.Nano()
}

// latin1 is a text with one character for each byte.
func latin1(body []byte) string {
	var text strings.Builder
	for _, one := range body {
		text.WriteRune(rune(one))
	}
	return text.String()
}

func consume(namesrv primitive.NamesrvAddr, topic, group, name string) {
	client, err := rocketmq.NewPushConsumer(
		consumer.WithNameServer(namesrv),
		consumer.WithGroupName(group),
		consumer.WithInstance(name+"-consumer"),
		consumer.WithConsumerOrder(true),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	)
	must(err)
	must(client.Subscribe(topic, consumer.MessageSelector{},
		func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			for _, message := range messages {
				say(event{
					"event": "received", "queue": message.Queue.QueueId, "offset": message.QueueOffset,
					"position": message.CommitLogOffset, "stored": message.StoreTimestamp,
					"body": latin1(message.Body),
				})
			}
			return consumer.ConsumeSuccess, nil
		}))
	must(client.Start())
}

func produce(client rocketmq.Producer, topic, name string) {
	count := 0
	for turn := 0; !stopped.Load(); turn++ {
		left := 1
		if turn%batchEvery == 0 {
			left = batch
		}
		first := name + "-" + strconv.Itoa(count)
		var messages []*primitive.Message
		var bodies []string
		for ; left > 0; left-- {
			unique := name + "-" + strconv.Itoa(count)
			body := unique + "|" + strings.Repeat(".", count%200)
			message := primitive.NewMessage(topic, []byte(body)).WithKeys([]string{unique})
			if turn%batchEvery != 0 && turn%keyedEvery == 0 {
				message.WithShardingKey("order-" + strconv.Itoa(turn%orderKeys))
			}
			messages = append(messages, message)
			bodies = append(bodies, body)
			count++
		}
		say(event{"event": "sending", "key": first, "at": now(), "bodies": bodies})
		result, err := client.SendSync(context.Background(), messages...)
		what := event{"event": "sent", "key": first, "at": now(), "outcome": "unknown"}
		if err != nil { // an earlier attempt may have been stored
			what["text"] = err.Error()
		} else {
			what["queue"] = result.MessageQueue.QueueId
			what["offset"] = result.QueueOffset
			what["id"] = result.OffsetMsgID
			if result.Status == primitive.SendOK {
				what["outcome"] = "acknowledged"
			}
		}
		say(what)
		time.Sleep(every)
	}
}

func main() {
	rlog.SetLogLevel("error")
	os.Stdout = os.Stderr // what the client's own logging prints
	namesrv := primitive.NamesrvAddr(strings.Split(os.Args[1], ";"))
	topic, group, name := os.Args[2], os.Args[3], os.Args[4]
	started := make(chan struct{}, 16)
	go func() {
		lines := bufio.NewScanner(os.Stdin)
		for lines.Scan() {
			if lines.Text() == "stop" {
				stopped.Store(true)
			}
			started <- struct{}{}
		}
		os.Exit(0)
	}()
	consume(namesrv, topic, group, name)
	client, err := rocketmq.NewProducer(
		producer.WithNameServer(namesrv),
		producer.WithGroupName(name+"-producers"),
		producer.WithInstanceName(name+"-producer"),
		producer.WithQueueSelector(producer.NewHashQueueSelector()),
	)
	must(err)
	must(client.Start())
	say(event{"event": "ready"})
	<-started
	produce(client, topic, name)
	say(event{"event": "stopped"})
	select {}
}
