// Drives npm `ali-ons`: node ali.js produce|mixed|rush|consume|sql|tags|broadcast|fails|outage|dies NAMESRV TOPIC GROUP MODULES
// or many of them, side by side: node ali.js many NAMESRV MODE:TOPIC:GROUP[:COUNT:INTERVAL_MS],... - MODULES
// One JSON object a line on standard output, of many with the number of its driver (of); ends when standard input closes.
// mixed: sends TagA and TagB in turn. fails: each message fails twice. outage: everything fails for a minute.
'use strict';

const [ mode, nameSrv, topic, group, modules ] = process.argv.slice(2);
const { createRequire } = require('module');
const load = createRequire(modules + '/');
const httpclient = load('urllib');
const { Producer, Consumer, Message } = load('ali-ons');

const INTERVAL_MS = 50;
const OUTAGE_MS = 60000;
const CONDITION = "number >= 10 AND parity IN ('even') AND missing IS NULL";
const quiet = { info() {}, debug() {}, warn() {}, error() {} };
const sleep = ms => new Promise(resolve => setTimeout(resolve, ms));
const { ROCKETMQ_ACCESS_KEY: accessKey, ROCKETMQ_SECRET_KEY: secretKey } = process.env;
const account = accessKey ? { accessKey, secretKey } : {};
let open = true;

process.stdin.on('end', () => { open = false; setTimeout(() => process.exit(0), 500); });
process.stdin.resume();

class Driver {
  // instanceName: of many, each is a client of its own
  constructor(mode, topic, group, { count = Infinity, intervalMs = INTERVAL_MS, of, instanceName } = {}) {
    Object.assign(this, { mode, topic, group, count, intervalMs, of });
    this.options = { httpclient, nameSrv, logger: quiet, ...account, ...(instanceName ? { instanceName } : {}) };
  }

  say(event) {
    process.stdout.write(JSON.stringify({ ms: Date.now(), of: this.of, ...event }) + '\n');
  }

  async producer() {
    const producer = new Producer({ ...this.options, producerGroup: this.group });
    producer.on('error', error => this.say({ event: 'error', text: String(error.message) }));
    await producer.ready();
    this.say({ event: 'ready' });
    return producer;
  }

  async produce() {
    const producer = await this.producer();
    for (let seq = 0; seq < this.count && open;) {
      try {
        const message = new Message(this.topic, this.mode === 'mixed' && seq % 2 ? 'TagB' : 'TagA', String(seq));
        message.keys = [ 'key-' + seq ];
        message.properties.number = String(seq);
        message.properties.parity = seq % 2 ? 'odd' : 'even';
        const result = await producer.send(message);
        if (result.sendStatus !== 'SEND_OK') throw new Error(result.sendStatus);
        this.say({ event: 'acked', seq, id: result.msgId });
        seq++;
      } catch (error) {
        this.say({ event: 'failed', seq, text: String(error.message) });
      }
      await sleep(this.intervalMs);
    }
    this.say({ event: 'done' });
  }

  // Eight at once, each message once: what the client repeats it repeats by itself. Counts, once a second.
  async rush() {
    const producer = await this.producer();
    let seq = 0, acked = 0, failed = 0;
    setInterval(() => this.say({ event: 'rushed', acked, failed }), 1000);
    await Promise.all(Array.from({ length: 8 }, async () => {
      while (open) {
        try {
          const message = new Message(this.topic, 'TagA', String(seq++));
          const result = await producer.send(message);
          if (result.sendStatus !== 'SEND_OK') throw new Error(result.sendStatus);
          acked++;
        } catch (error) {
          failed++;
          await sleep(1);
        }
      }
    }));
  }

  async consume() {
    const { mode } = this;
    let outageEnds = mode === 'outage' ? Infinity : 0;
    const consumer = new Consumer({ ...this.options, consumerGroup: this.group,
      consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET', isBroadcast: mode === 'broadcast',
      maxReconsumeTimes: mode === 'dies' ? 1 : 16 });
    consumer.on('error', error => this.say({ event: 'error', text: String(error.message) }));
    const wanted = mode === 'sql' ? { subString: CONDITION, expressionType: 'SQL92' } : mode === 'tags' ? 'TagB' : '*';
    consumer.subscribe(this.topic, wanted, async message => {
      this.say({ event: 'received', seq: Number(message.body.toString()), keys: message.keys, tag: message.tags,
        queue: message.queueId, offset: message.queueOffset, times: message.reconsumeTimes });
      outageEnds = Math.min(outageEnds, Date.now() + OUTAGE_MS);
      if (mode === 'dies' || mode === 'fails' && message.reconsumeTimes < 2 || Date.now() < outageEnds) {
        throw new Error('not yet');
      }
    });
    await consumer.ready();
    this.say({ event: 'ready' });
  }

  run() {
    ({ produce: () => this.produce(), mixed: () => this.produce(), rush: () => this.rush() }[this.mode] ||
      (() => this.consume()))().catch(error => {
      this.say({ event: 'fatal', text: String(error.stack) });
      process.exit(1);
    });
  }
}

if (mode === 'many') {
  topic.split(',').forEach((each, of) => {
    const [ mode, topic, group, count, intervalMs ] = each.split(':');
    const times = count ? { count: Number(count), intervalMs: Number(intervalMs) } : {};
    new Driver(mode, topic, group, { ...times, of, instanceName: `many${process.pid}_${of}` }).run();
  });
} else {
  new Driver(mode, topic, group).run();
}
