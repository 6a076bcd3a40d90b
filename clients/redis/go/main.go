// Transactions of go-redis: `shoal-redis HOST:PORT`.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

func check(err error, right bool, what string) {
	if err != nil || !right {
		fmt.Println("wrong:", what, err)
		os.Exit(1)
	}
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	client := redis.NewClient(&redis.Options{Addr: os.Args[1]})
	var count *redis.IntCmd
	var got *redis.StringCmd
	_, err := client.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
		pipe.Set(ctx, "go:a", 1, time.Minute)
		count = pipe.Incr(ctx, "go:a")
		got = pipe.Get(ctx, "go:a")
		return nil
	})
	check(err, count.Val() == 2 && got.Val() == "2", "TxPipelined")
	commands, err := client.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
		pipe.Set(ctx, "go:text", "x", 0)
		pipe.Incr(ctx, "go:text")
		pipe.Append(ctx, "go:text", "y")
		return nil
	})
	check(nil, err != nil && commands[0].Err() == nil && commands[1].Err() != nil && commands[2].Err() == nil, "one that fails")

	// Counts up by WATCH, as the documentation has it, eight at once.
	client.Del(ctx, "go:count")
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 20 {
				for {
					err := client.Watch(ctx, func(tx *redis.Tx) error {
						value, err := tx.Get(ctx, "go:count").Int()
						if err != nil && !errors.Is(err, redis.Nil) {
							return err
						}
						_, err = tx.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
							pipe.Set(ctx, "go:count", value+1, 0)
							return nil
						})
						return err
					}, "go:count")
					if err == nil {
						break
					}
					check(nil, errors.Is(err, redis.TxFailedErr), "Watch: "+err.Error())
				}
			}
		})
	}
	all.Wait()
	value, err := client.Get(ctx, "go:count").Int()
	check(err, value == 160, "Watch")
	fmt.Println("go-redis", redis.Version(), ": transactions are well")
}
